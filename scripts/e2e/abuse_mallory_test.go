package e2e

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// Values in every message of an honest host, and the identity that mallory
// claims.
const (
	qkey       hca.QKey = 0x0b1b
	malloryQPN hca.QPN  = 0x00abcd
)

// groupAddr carries the broadcast group.
var groupAddr = netip.MustParseAddr("239.192.18.183")

// mallory is an attacker on the hosts' segment who sends RoCEv2 from an ordinary
// socket of a user without capabilities.
type mallory struct {
	*host
	conn    *net.UDPConn
	addr    netip.Addr
	srcPort uint16
}

// newMallory opens a socket in the host's namespace. Its packets may be
// fragmented, which a receiver cannot see, so the ICRC is computed as if they
// were not.
func newMallory(h *host) *mallory { return newMalloryAt(h, h.underlay()) }

// newMalloryAt opens a socket at another address of the host. Its multicast leaves through
// the underlay.
func newMalloryAt(h *host, from netip.Addr) *mallory {
	h.tb.Helper()
	m := &mallory{host: h, addr: from}
	var err error
	wait := h.asStranger(func() { m.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: m.addr.AsSlice()}) })
	wait()
	if err != nil {
		h.tb.Fatalf("open mallory's socket: %v", err)
	}
	h.tb.Cleanup(func() { m.conn.Close() })
	m.srcPort = m.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	m.control(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	})
	m.control(func(fd int) error {
		return unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: h.underlay().As4()})
	})
	return m
}

func (m *mallory) control(f func(fd int) error) {
	m.tb.Helper()
	raw, err := m.conn.SyscallConn()
	if err != nil {
		m.tb.Fatal(err)
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil || ferr != nil {
		m.tb.Fatalf("prepare mallory's socket: %v, %v", err, ferr)
	}
}

// underlay returns the host's address on the underlay.
func (h *host) underlay() netip.Addr { return netip.MustParseAddr(nstest.IPv4(h.number)) }

// sendBytes sends any datagram to port 4791.
func (m *mallory) sendBytes(dst netip.Addr, datagram []byte) {
	m.tb.Helper()
	if _, err := m.conn.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(dst, roce.Port)); err != nil {
		m.tb.Fatalf("mallory sends %d bytes to %s: %v", len(datagram), dst, err)
	}
}

// send sends a packet with the ICRC of its path.
func (m *mallory) send(dst netip.Addr, p packet) {
	m.tb.Helper()
	m.sendBytes(dst, p.encode(m.path(dst)))
}

func (m *mallory) path(dst netip.Addr) roce.Path {
	return roce.Path{Src: m.addr, Dst: dst, SrcPort: m.srcPort}
}

// packet is a UD SEND; any part of it may be wrong.
type packet struct {
	roce.BTH
	roce.DETH
	msg    []byte
	damage uint32 // to the ICRC
}

// rightPacket returns a packet that a queue pair accepts.
func rightPacket(to hca.QPN, msg []byte) packet {
	return packet{
		BTH:  roce.BTH{Opcode: roce.OpcodeUDSendOnly, PKey: hca.PKeyDefault, DestQPN: to},
		DETH: roce.DETH{QKey: qkey, SrcQPN: malloryQPN},
		msg:  msg,
	}
}

func (p packet) encode(path roce.Path) []byte {
	p.Pad = uint8(roce.PadFor(len(p.msg)))
	b := make([]byte, roce.HeaderLen, roce.HeaderLen+len(p.msg)+roce.MaxPad+roce.ICRCLen)
	p.BTH.Put(b)
	p.DETH.Put(b[roce.BTHLen:])
	b = append(b, p.msg...)
	b = append(b, make([]byte, p.Pad)...)
	return binary.LittleEndian.AppendUint32(b, roce.ICRC(&path, b)^p.damage)
}

// message returns an IPoIB message.
func message(typ ipoib.EtherType, body []byte) []byte {
	b := make([]byte, ipoib.HeaderLen, ipoib.HeaderLen+len(body))
	ipoib.PutHeader(b, typ)
	return append(b, body...)
}

// ipv4UDP returns an IPv4 packet as the daemon sends it, DF set and
// identification 0, without checksums: the kernel adds that of the header, and
// UDP over IPv4 needs none (RFC 768).
func ipv4UDP(path roce.Path, datagram []byte) []byte {
	const ipLen, udpLen = 20, 8
	src, dst := path.Src.As4(), path.Dst.As4()
	b := []byte{0x45, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(ipLen+udpLen+len(datagram)))
	b = append(b, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(b, path.SrcPort)
	b = binary.BigEndian.AppendUint16(b, roce.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen+len(datagram)))
	return append(append(b, 0, 0), datagram...)
}
