package bpf_test

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// Results of a program at a netdev (linux/pkt_cls.h).
const (
	actNext     = ^uint32(0) // TC_ACT_UNSPEC
	actRedirect = 7          // TC_ACT_REDIRECT
)

// skBuff is the part of struct __sk_buff (linux/bpf.h) that a test of a program sets.
type skBuff struct {
	_       [10]uint32
	Ifindex uint32
	_       [30]uint32
	GSOSegs uint32
	_       [2]uint32
	GSOSize uint32
	_       [3]uint32
}

// fastHost is a host whose programs are run, and attached only by attach.
type fastHost struct {
	bpf.GateSpec
	path *bpf.FastPath
	gate *bpf.Gate
	bpf.GateKeys
	outer [6]byte // MAC of the underlay
	send  *ebpf.Program
	recv  *ebpf.Program
	calls int // descriptor
}

// Of all packets.
const (
	trafficClass = 0x28
	hopLimit     = 63
)

// keys are those of all hosts.
var keys = bpf.GateKeys{QKey: 0xb1b, PKey: 0xffff}

// firstPSN is the first sequence number of a host, shortly before the wrap.
const firstPSN = uint32(0xfffffe)

// newFastHost returns a host with netdevs of their own in the current namespace.
func newFastHost(t *testing.T, number byte, addr string) *fastHost {
	t.Helper()
	h := &fastHost{outer: [6]byte{6, 0, 0, 0, 0, number}, GateKeys: keys}
	h.GateSpec = bpf.GateSpec{
		MAC: [6]byte{2, 0, 0, 0, 0, number}, Addr: netip.MustParseAddr(addr), Num: 0x100 + uint32(number),
		Ports: []uint16{0xc000, 0xc001},
	}
	h.Netdev, h.Underlay = newNetdev(t, h.MAC), newNetdev(t, h.outer)
	h.load(t)
	return h
}

// load loads the fast path and adds the gate.
func (h *fastHost) load(t *testing.T) {
	t.Helper()
	fds, err := bpf.LoadFastPath()
	must(t, err)
	h.path, err = bpf.OpenFastPath(fds)
	must(t, err)
	h.calls = fds[2]
	h.send, h.recv = program(t, h.path.AtNetdev), program(t, h.path.AtUnderlay)
	h.gate, err = h.path.Gate(h.GateSpec)
	must(t, err)
	h.path.Attached(h.Netdev)
	h.path.Attached(h.Underlay)
}

// newNetdev creates a netdev that is up.
func newNetdev(t *testing.T, mac [6]byte) (index int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "n"+hex.EncodeToString(mac[:]), mac[:]
	l := &netlink.Veth{LinkAttrs: attrs, PeerName: "p" + attrs.Name}
	must(t, netlink.LinkAdd(l))
	must(t, netlink.LinkSetUp(l))
	return l.Attrs().Index
}

// program returns the program with a descriptor, which stays open.
func program(t *testing.T, fd int) *ebpf.Program {
	t.Helper()
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	p, err := ebpf.NewProgramFromFD(dup)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// twoFastHosts returns two hosts that are peers, with open gates.
func twoFastHosts(t *testing.T, addrs [2]string) (a, b *fastHost) {
	t.Helper()
	a, b = newFastHost(t, 1, addrs[0]), newFastHost(t, 2, addrs[1])
	must(t, a.gate.AddPeer(b.asPeer()))
	must(t, b.gate.AddPeer(a.asPeer()))
	a.open()
	b.open()
	return a, b
}

// asPeer describes the host to another one.
func (h *fastHost) asPeer() bpf.FastPeer {
	return bpf.FastPeer{
		MAC: h.MAC, Addr: h.Addr, Hop: h.Addr, Num: h.Num, QKey: h.QKey, TrafficClass: trafficClass, HopLimit: hopLimit,
	}
}

// open opens the gate, and nothing is on its way through the lanes.
func (h *fastHost) open() {
	*h.gate.PSN() = firstPSN
	h.gate.Open(h.GateKeys)
	h.idle(time.Now())
}

func (h *fastHost) idle(now time.Time) {
	for lane := range h.Ports {
		h.gate.SentAll(lane, now)
		h.gate.ReceivedAll(lane, now)
	}
}

// run runs a program on a frame at a netdev.
func run(tb testing.TB, prog *ebpf.Program, at skBuff, frame []byte) (result uint32, out []byte) {
	tb.Helper()
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096), Context: at}
	result, err := prog.Run(&o)
	must(tb, err)
	return result, o.DataOut
}

func (h *fastHost) sends(tb testing.TB, frame []byte) (result uint32, packet []byte) {
	tb.Helper()
	return run(tb, h.send, skBuff{Ifindex: uint32(h.Netdev)}, frame)
}

// receives runs the program of the underlay on a packet that another host has sent.
func (h *fastHost) receives(tb testing.TB, packet []byte) (result uint32, frame []byte) {
	tb.Helper()
	packet = slices.Clone(packet)
	copy(packet, h.outer[:])
	return run(tb, h.recv, skBuff{Ifindex: uint32(h.Underlay)}, packet)
}

// ipLen is the length of the underlay's IP headers.
func (h *fastHost) ipLen() int {
	if h.Addr.Is4() {
		return 20
	}
	return 40
}

// port returns the UDP source port of a packet.
func (h *fastHost) port(packet []byte) uint16 { return binary.BigEndian.Uint16(packet[14+h.ipLen():]) }

// packet is a RoCEv2 packet as the pure codec makes it.
type packet struct {
	src, dst netip.Addr
	id       uint16 // IPv4 identification
	port     uint16 // UDP source port
	bth      roce.BTH
	deth     roce.DETH
	message  []byte // from the IPoIB header on
}

// packetOf returns the packet of a frame to a peer.
func (h *fastHost) packetOf(frame []byte, to *fastHost, psn uint32, port uint16) packet {
	return packet{
		src: h.Addr, dst: to.Addr, port: port,
		bth: roce.BTH{
			Opcode: roce.OpcodeUDSendOnly, Migrated: true, Pad: uint8(roce.PadFor(len(frame) - 14)), PKey: hca.PKey(h.PKey),
			DestQPN: hca.QPN(to.Num), PSN: psn,
		},
		deth:    roce.DETH{QKey: hca.QKey(to.QKey), SrcQPN: hca.QPN(h.Num)},
		message: append([]byte{frame[12], frame[13], 0, 0}, frame[14:]...),
	}
}

// bytes returns the packet with an Ethernet header.
func (p *packet) bytes() []byte {
	datagram := make([]byte, roce.HeaderLen)
	p.bth.Put(datagram)
	p.deth.Put(datagram[roce.BTHLen:])
	datagram = append(append(datagram, p.message...), make([]byte, p.bth.Pad)...)
	icrc := roce.ICRC(&roce.Path{Src: p.src, Dst: p.dst, SrcPort: p.port, ID: p.id}, datagram)
	datagram = binary.LittleEndian.AppendUint32(datagram, icrc)
	udp := binary.BigEndian.AppendUint16(nil, p.port)
	udp = binary.BigEndian.AppendUint16(udp, roce.Port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(datagram)))
	udp = append(append(udp, 0, 0), datagram...)
	ether := make([]byte, 12, 1024)
	if p.src.Is4() {
		ip := ipv4Packet(p.src, p.dst, trafficClass, hopLimit, p.id, 17, udp)
		putChecksum(ip, 20, 6)
		return append(append(ether, 0x08, 0x00), ip...)
	}
	ip := ipv6Packet(p.src, p.dst, trafficClass, 0, hopLimit, 17, udp)
	putChecksum(ip, 40, 6)
	return append(append(ether, 0x86, 0xdd), ip...)
}

func ipv4Packet(src, dst netip.Addr, tos, ttl byte, id uint16, protocol byte, l4 []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0x45, tos}, uint16(20+len(l4)))
	b = append(binary.BigEndian.AppendUint16(b, id), 0x40, 0, ttl, protocol, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], ^fold(b))
	return append(b, l4...)
}

func ipv6Packet(src, dst netip.Addr, class byte, label uint32, hops, next byte, l4 []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 6<<28|uint32(class)<<20|label)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(l4))), next, hops)
	return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), l4...)
}

// pseudo returns the sum of the pseudo header of an IP packet whose header has a length.
func pseudo(ip []byte, header int) uint16 {
	protocol, addrs := ip[9], ip[12:20]
	if header == 40 {
		protocol, addrs = ip[6], ip[8:40]
	}
	return fold(binary.BigEndian.AppendUint16(append(slices.Clone(addrs), 0, protocol), uint16(len(ip)-header)))
}

// putChecksum computes the checksum at an offset in the payload of an IP packet whose header has a length.
func putChecksum(ip []byte, header, check int) {
	field := ip[header+check:]
	binary.BigEndian.PutUint16(field, pseudo(ip, header))
	sum := ^fold(ip[header:])
	if sum == 0 { // UDP: zero would mean no checksum (RFC 768)
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// fold returns the sum of 16-bit words in ones' complement.
func fold(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i%2))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// fastProtocols are those that the fast path carries.
var fastProtocols = []struct {
	number byte
	ipLen  int
	least  int // bytes
	check  int // offset of a checksum that may be partial; 0: none
}{{6, 20, 20, 16}, {17, 20, 8, 6}, {1, 20, 8, 0}, {6, 40, 20, 16}, {17, 40, 8, 6}, {58, 40, 8, 0}}

var (
	inner4 = [2]netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")}
	inner6 = [2]netip.Addr{netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::2")}
)

// frameTo returns a random frame to a peer that the fast path carries. Its checksum is partial in partly, if there is one,
// and complete in whole.
func (h *fastHost) frameTo(to *fastHost, rng *rand.Rand) (partly, whole []byte) {
	p := fastProtocols[rng.IntN(len(fastProtocols))]
	l4 := make([]byte, p.least+rng.IntN(bpf.MaxFastPacket-p.ipLen-p.least+1))
	for i := range l4 {
		l4[i] = byte(rng.Uint32())
	}
	switch p.number {
	case 17: // not the ports of DHCP
		l4[0], l4[2] = l4[0]|0x80, l4[2]|0x80
	case 1:
		l4[0] = []byte{0, 8}[rng.IntN(2)]
	case 58:
		l4[0] = []byte{128, 129}[rng.IntN(2)]
	}
	b := append(slices.Clone(to.MAC[:]), h.MAC[:]...)
	if p.ipLen == 20 {
		b = append(append(b, 0x08, 0x00), ipv4Packet(inner4[0], inner4[1], 0, 64, 7, p.number, l4)...)
	} else {
		b = append(append(b, 0x86, 0xdd), ipv6Packet(inner6[0], inner6[1], 0, 0, 64, p.number, l4)...)
	}
	whole = slices.Clone(b)
	if p.check > 0 {
		putChecksum(whole[14:], p.ipLen, p.check)
		binary.BigEndian.PutUint16(b[14+p.ipLen+p.check:], pseudo(b[14:], p.ipLen))
	}
	return b, whole
}
