package e2e

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// A packet socket on ib0 sends frames that a host's stack would not send. ib0 is
// a bridge port.
func TestR07AbuseFromHost(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, func(h *host) {
		h.start()
		h.bridge()
		h.waitCarrier()
	})
	port := newPacketSocket(s.a)
	for _, tt := range s.wrongFrames() {
		s.a.expect(tt.name, map[string]uint64{tt.reason: volley}, func() {
			for range volley {
				port.send(tt.frame)
			}
		})
	}
	s.randomFrames(port)
	s.neverResolved(port)
	s.lengths(port)
	s.end(1)
}

// wrongFrame is a frame and the reason for dropping it.
type wrongFrame struct {
	name, reason string
	frame        []byte
}

func (s *siege) wrongFrames() []wrongFrame {
	s.t.Helper()
	own, peer := mac(bridgeMAC), mac(s.a.iface().Peers[0].MAC)
	unknown := mac("02:00:00:00:55:01")
	ip := ipv4(s.a.ip4(), s.b.ip4())
	arp := ipoib.EtherARP{Op: ipoib.ARPRequest, SHA: own, SPA: addr(s.a.ip4()), TPA: addr(s.b.ip4())}
	forged := arp
	forged.SHA = unknown
	fabricNS := ipoib.AppendNS(nil, addr(s.a.ip6()), addr(s.b.ip6()), ipoib.Addr{})
	return []wrongFrame{
		{"VLAN tag", "tap_drop_filter_vlan", ether(peer, own, 0x8100, make([]byte, 60))},
		{"LLDP", "tap_drop_filter_lldp", ether(ipoib.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, own, 0x88cc, make([]byte, 60))},
		{"802.3 length", "tap_drop_filter_llc", ether(ipoib.Broadcast, unknown, 60, make([]byte, 60))},
		{"from the zero MAC", "neigh_drop_bad_source", ether(peer, ipoib.MAC{}, ipoib.EtherTypeIPv4, ip)},
		{"from a group", "neigh_drop_bad_source", ether(peer, ipoib.Broadcast, ipoib.EtherTypeIPv4, ip)},
		{"from a peer's MAC", "neigh_drop_looped_mac", ether(ipoib.Broadcast, peer, ipoib.EtherTypeIPv4, ip)},
		{"to itself", "neigh_drop_to_self", ether(own, own, ipoib.EtherTypeIPv4, ip)},
		{"no IP header", "neigh_drop_runt", ether(unknown, own, ipoib.EtherTypeIPv4, ip[:19])},
		{"no IP header at all", "neigh_drop_runt", ether(unknown, own, ipoib.EtherTypeIPv6, nil)},
		{"to a group at an unknown MAC", "neigh_drop_unresolvable", ether(unknown, own, ipoib.EtherTypeIPv4, ipv4(s.b.ip4(), "224.0.0.1"))},
		{"ARP cut", "neigh_drop_bad_arp", ether(ipoib.Broadcast, own, ipoib.EtherTypeARP, arp.Append(nil)[:27])},
		{"ARP in another's name", "neigh_drop_bad_arp", ether(ipoib.Broadcast, own, ipoib.EtherTypeARP, forged.Append(nil))},
		{"ND in the fabric's form", "neigh_drop_bad_nd", ether(peer, own, ipoib.EtherTypeIPv6, fabricNS)},
		{"ND in another's name", "neigh_drop_unmapped_link_address", ether(peer, own, ipoib.EtherTypeIPv6, s.solicitation(unknown))},
	}
}

// solicitation returns a solicitation for b's address that claims that a's
// address is at this MAC.
func (s *siege) solicitation(at ipoib.MAC) []byte {
	s.t.Helper()
	ip := &layers.IPv6{
		Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255,
		SrcIP: addr(s.a.ip6()).AsSlice(), DstIP: addr(s.b.ip6()).AsSlice(),
	}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip) // cannot fail for an IPv6 layer
	ns := &layers.ICMPv6NeighborSolicitation{
		TargetAddress: ip.DstIP,
		Options:       layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: at[:]}},
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, icmp, ns); err != nil {
		s.t.Fatalf("encode the neighbour solicitation: %v", err)
	}
	return b.Bytes()
}

// randomFrames sends random bytes of many lengths from every MAC. They are
// dropped for their ethertype, which is never one of the four that IPoIB
// carries.
func (s *siege) randomFrames(port *packetSocket) {
	s.t.Helper()
	noise := rand.New(rand.NewPCG(3, 4))
	const n = 5 * volley
	s.a.expect("noise", map[string]uint64{"tap_drop_filter_other": n}, func() {
		for i := range n {
			frame := make([]byte, etherHeader+i)
			for j := range frame {
				frame[j] = byte(noise.Uint32())
			}
			frame[etherHeader-2] |= 0x90 // above all four
			port.send(frame)
		}
	})
}

// The limits of the neighbour table (limits.go of neigh) while it resolves
// addresses, and how long it tries.
const (
	keptForOne  = 64
	resolutions = 256
	askTime     = 3 * time.Second
)

// neverResolved sends to unused addresses: first many frames to one address,
// then one frame to each of many addresses.
func (s *siege) neverResolved(port *packetSocket) {
	s.t.Helper()
	const one, many = 100, 1000
	to := func(i int) []byte {
		dst := netip.AddrFrom4([4]byte{10, 44, 1 + byte(i>>8), byte(i)}).String()
		return ether(ipoib.MAC{2, 0, 0, 0x66, byte(i >> 8), byte(i)}, mac(bridgeMAC), ipoib.EtherTypeIPv4, ipv4(s.a.ip4(), dst))
	}
	handled := func() uint64 {
		now, err := s.a.daemon.usage(s.t.Context()) // quickly, because all must be sent within askTime
		if err != nil || len(now.Interfaces) != 1 {
			s.t.Fatalf("status: %v, %+v", err, now)
		}
		return now.Interfaces[0].Counters["neigh_from_host"]
	}
	var end time.Time
	s.a.expect("never resolved", map[string]uint64{
		"neigh_drop_kept_frames_full": one - keptForOne,
		"neigh_drop_resolutions_full": many - (resolutions - 1),
		"neigh_drop_unresolved":       0, // not yet
	}, func() {
		before := handled()
		for n := range one + many {
			if n%volley == 0 { // the queues of the TAP and of the slow path are also bounded
				eventually(s.t, countLimit, "the table has seen the frames so far", func() bool { return handled()-before >= uint64(n) })
			}
			port.send(to(max(0, n-one+1)))
		}
		end = time.Now()
	})
	s.a.expect("given up", map[string]uint64{"neigh_drop_unresolved": keptForOne + resolutions - 1}, func() {
		time.Sleep(time.Until(end.Add(askTime)))
	})
}

// lengths tries frames that the kernel refuses, and the longest that it
// accepts: a VLAN tag more than the MTU.
func (s *siege) lengths(port *packetSocket) {
	s.t.Helper()
	mtu := s.a.iface().MTU
	own := mac(bridgeMAC)
	for _, b := range [][]byte{
		make([]byte, etherHeader-1),
		ether(ipoib.Broadcast, own, ipoib.EtherTypeIPv4, make([]byte, mtu+1)),
	} {
		if err := port.try(b); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EMSGSIZE) {
			s.t.Errorf("sending a frame of %d bytes with MTU %d: %v, want EINVAL or EMSGSIZE", len(b), mtu, err)
		}
	}
	const vlanTag = 4
	longest := ether(ipoib.Broadcast, own, 0x8100, make([]byte, mtu+vlanTag))
	s.a.expect("tagged, of full length", map[string]uint64{"tap_drop_filter_vlan": volley}, func() {
		for range volley {
			port.send(longest)
		}
	})
}

const etherHeader = 14

// ether returns an Ethernet frame.
func ether(dst, src ipoib.MAC, typ ipoib.EtherType, body []byte) []byte {
	b := append(append([]byte(nil), dst[:]...), src[:]...)
	return append(binary.BigEndian.AppendUint16(b, uint16(typ)), body...)
}

// ipv4 returns an IPv4 packet of 40 bytes with an empty payload.
func ipv4(src, dst string) []byte {
	b := make([]byte, 40)
	b[0], b[3], b[8], b[9] = 0x45, byte(len(b)), 64, unix.IPPROTO_UDP
	copy(b[12:], addr(src).AsSlice())
	copy(b[16:], addr(dst).AsSlice())
	return b
}

func mac(s string) ipoib.MAC {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return ipoib.MAC(m)
}

// packetSocket sends frames on ib0 unchanged.
type packetSocket struct {
	tb testing.TB
	fd int
	to unix.SockaddrLinklayer
}

func newPacketSocket(h *host) *packetSocket {
	h.tb.Helper()
	return newPacketSocketOn(h, ifName)
}

func newPacketSocketOn(h *host, name string) *packetSocket {
	h.tb.Helper()
	p := &packetSocket{tb: h.tb}
	h.Do(func() {
		dev, err := net.InterfaceByName(name)
		if err != nil {
			h.tb.Fatal(err)
		}
		p.to.Ifindex = dev.Index
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			h.tb.Fatalf("open a packet socket: %v", err)
		}
	})
	h.tb.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

func (p *packetSocket) try(frame []byte) error { return unix.Sendto(p.fd, frame, 0, &p.to) }

func (p *packetSocket) send(frame []byte) {
	p.tb.Helper()
	if err := p.try(frame); err != nil {
		p.tb.Fatalf("send a frame of %d bytes: %v", len(frame), err)
	}
}
