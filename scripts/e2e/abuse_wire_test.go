package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// volley is how many times each wrong packet is sent: enough to see that each
// is counted once, few enough for the slow path's queue.
const volley = 200

// Datagrams that are not UD SENDs for this queue pair are dropped at the
// device.
func TestR07AbuseWrongDatagrams(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	s := newSiege(t, join)
	s.truncate()
	s.randomPayloads()
	for _, tt := range []struct {
		reason string
		spoil  func(*packet)
	}{
		{"hca_rx_drop_version", func(p *packet) { p.Version = 1 }},
		{"hca_rx_drop_opcode", func(p *packet) { p.Opcode = 0x04 }}, // RC SEND only
		{"hca_rx_drop_immediate", func(p *packet) { p.Opcode = 0x65 }},
		{"hca_rx_drop_icrc", func(p *packet) { p.damage = 1 << 31 }},
		{"hca_rx_drop_pkey", func(p *packet) { p.PKey = 0x8001 }},
		{"hca_rx_drop_pkey", func(p *packet) { p.PKey = 0 }},
		{"hca_rx_drop_qkey", func(p *packet) { p.QKey++ }},
		{"hca_rx_drop_no_qp", func(p *packet) { p.DestQPN ^= 1 << 20 }},
		{"hca_rx_drop_no_qp", func(p *packet) { p.DestQPN = 0 }},
		{"hca_rx_drop_no_qp", func(p *packet) { p.DestQPN = hca.QPNMulticast }},
		{"hca_rx_drop_gsi", func(p *packet) { p.DestQPN = hca.QPNGSI }},
	} {
		p := rightPacket(s.a.qp().QPN, message(ipoib.EtherTypeIPv4, make([]byte, 64)))
		tt.spoil(&p)
		s.volley(tt.reason, s.a.underlay(), p)
	}
	// Longer than a port may send, in fragments.
	tooLong := rightPacket(s.a.qp().QPN, message(ipoib.EtherTypeIPv4, make([]byte, 4096)))
	s.volley("hca_rx_drop_too_long", s.a.underlay(), tooLong)
	// All hosts listen on the group's address, but none has a queue pair with
	// another number.
	p := rightPacket(s.a.qp().QPN, message(ipoib.EtherTypeIPv4, make([]byte, 64)))
	s.volley("hca_rx_drop_group_qpn", groupAddr, p)
	s.end(1)
}

// volley sends a packet many times to a, and requires that all are dropped for one reason. Less often if
// they are so large that they would not fit into the socket's buffer while the daemon waits for a processor.
func (s *siege) volley(reason string, dst netip.Addr, p packet) {
	s.t.Helper()
	if strings.HasPrefix(reason, "neigh_") {
		time.Sleep(volley * time.Second / slowPathRate) // so that the slow path's limit drops none
	}
	n := min(volley, volleyMost/(1+len(p.msg)))
	s.a.expect(fmt.Sprintf("%d bytes", len(p.msg)), map[string]uint64{reason: uint64(n)}, func() {
		perPause := max(1, volleyBytes/(1+len(p.msg)))
		for i := range n {
			if i%perPause == perPause-1 {
				time.Sleep(time.Millisecond)
			}
			s.mallory.send(dst, p)
		}
	})
}

// slowPathRate is how many messages a second from one GID the daemon handles; up to 512 may come at once.
const slowPathRate = 1000

// volleyBytes is sent per millisecond: less than the smallest default size of a
// socket buffer (208 KiB), including overhead.
const volleyBytes = 64 << 10

// volleyMost bounds the bytes of a volley. With the overhead they take up to half of the daemon's receive buffer.
const volleyMost = 4 << 20

// maxCut is the longest truncated datagram.
const maxCut = 80

// truncate sends every prefix of a datagram.
func (s *siege) truncate() {
	s.t.Helper()
	whole := s.uncuttable()
	want := map[string]uint64{}
	for n := range maxCut + 1 {
		switch {
		case n < roce.HeaderLen+roce.ICRCLen:
			want["hca_rx_drop_short"]++
		case n%4 != 0:
			want["hca_rx_drop_pad"]++
		default:
			want["hca_rx_drop_icrc"]++
		}
	}
	s.a.expect("truncated", want, func() {
		for n := range maxCut + 1 {
			s.mallory.sendBytes(s.a.underlay(), whole[:n])
		}
	})
}

// uncuttable returns a datagram without a prefix that has a valid ICRC: one in
// 2^16 prefixes has one by chance, because the receiver cannot see the IPv4
// identification, which can account for the difference.
func (s *siege) uncuttable() []byte {
	path := s.mallory.path(s.a.underlay())
	p := rightPacket(s.a.qp().QPN, message(ipoib.EtherTypeIPv4, make([]byte, 2*maxCut)))
	for ; ; p.PSN++ {
		b := p.encode(path)
		right := false
		for n := range maxCut + 1 {
			match := new(roce.Verifier).Verify(&path, false, b[:n])
			right = right || match != roce.NoMatch
		}
		if !right {
			return b
		}
	}
}

// randomPayloads sends random bytes of every length that the underlay carries,
// and checks that all of them are dropped and none delivered.
func (s *siege) randomPayloads() {
	s.t.Helper()
	const longest = underlayMTU - 28
	noise := rand.New(rand.NewPCG(1, 2))
	want := map[string]uint64{}
	var datagrams [][]byte
	for n := range longest + 1 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(noise.Uint32())
		}
		datagrams = append(datagrams, b)
		want[reasonOf(b)]++
	}
	s.a.expect("random", want, func() {
		for _, b := range datagrams {
			s.mallory.sendBytes(s.a.underlay(), b)
		}
	})
}

// reasonOf returns the reason to drop random bytes, derived from the headers
// according to the specification (IBA 9.2, A17): length, version, opcode,
// padding.
func reasonOf(b []byte) string {
	switch {
	case len(b) < 12+8+4:
		return "hca_rx_drop_short"
	case b[1]&0x0f != 0:
		return "hca_rx_drop_version"
	case b[0] == 0x65:
		return "hca_rx_drop_immediate"
	case b[0] != 0x64:
		return "hca_rx_drop_opcode"
	case len(b)%4 != 0 || int(b[1]>>4&3) > len(b)-24:
		return "hca_rx_drop_pad"
	}
	return "hca_rx_drop_icrc"
}

// Invalid messages in valid packets are dropped at the interface.
func TestR07AbuseWrongMessages(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	s := newSiege(t, join)
	arp := message(ipoib.EtherTypeARP, s.claim(malloryQPN, s.mallory.addr).Append(nil))
	ns := ipoib.AppendNS(nil, addr("fd44::99"), addr(s.a.ip6()), endpoint(malloryQPN, s.mallory.addr))
	for _, tt := range []struct {
		reason string
		msg    []byte
	}{
		{"rx_drop_runt", nil},
		{"rx_drop_runt", []byte{0x08}},
		{"rx_drop_runt", []byte{0x08, 0x00, 0}},
		{"rx_drop_ethertype", message(0x8100, make([]byte, 60))},
		{"rx_drop_ethertype", message(0xffff, nil)},
		{"rx_drop_ethertype", message(0, make([]byte, 1444))},
		{"rx_drop_malformed", message(ipoib.EtherTypeIPv4, nil)},
		{"rx_drop_malformed", message(ipoib.EtherTypeIPv4, make([]byte, 19))},
		{"rx_drop_malformed", message(ipoib.EtherTypeIPv4, make([]byte, 100))}, // version 0
		{"rx_drop_malformed", message(ipoib.EtherTypeIPv6, make([]byte, 39))},
		{"rx_drop_too_long", message(ipoib.EtherTypeIPv4, make([]byte, 1445))}, // in fragments
		{"rx_drop_too_long", message(ipoib.EtherTypeIPv4, make([]byte, 4092))},
		{"neigh_drop_bad_arp", message(ipoib.EtherTypeARP, nil)},
		{"neigh_drop_bad_arp", arp[:len(arp)-1]},
		{"neigh_drop_bad_arp", changed(arp, 5, 1)},  // Ethernet's hardware type
		{"neigh_drop_bad_arp", changed(arp, 8, 6)},  // its length
		{"neigh_drop_bad_arp", changed(arp, 9, 16)}, // not IPv4
		{"neigh_drop_bad_nd", message(ipoib.EtherTypeIPv6, ns[:len(ns)-1])},
		{"neigh_drop_bad_nd", message(ipoib.EtherTypeIPv6, changed(ns, 43, ns[43]+1))}, // checksum
		{"neigh_drop_bad_nd", message(ipoib.EtherTypeIPv6, changed(ns, 65, 0))},        // option of length 0
	} {
		s.volley(tt.reason, s.a.underlay(), rightPacket(s.a.qp().QPN, tt.msg))
	}
	fromGSI := rightPacket(s.a.qp().QPN, arp)
	fromGSI.SrcQPN = hca.QPNGSI // reserved QPN
	s.volley("neigh_drop_bad_source", s.a.underlay(), fromGSI)
	// Fragments of a datagram that is too long for any queue pair.
	s.volley("hca_wire_rx_drop_too_long", s.a.underlay(), rightPacket(s.a.qp().QPN, make([]byte, 60000)))
	s.end(1)
}

// changed returns a copy of b with another byte at i.
func changed(b []byte, i int, to byte) []byte {
	c := append([]byte(nil), b...)
	c[i] = to
	return c
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// endpoint returns the link-layer address of a queue pair at an underlay
// address.
func endpoint(qpn hca.QPN, underlay netip.Addr) ipoib.Addr {
	return ipoib.NewAddr(qpn, hca.GIDFromAddr(underlay))
}

// claim returns an ARP request for a's address that binds one of mallory's to a
// queue pair.
func (s *siege) claim(qpn hca.QPN, underlay netip.Addr) ipoib.ARP {
	return ipoib.ARP{Op: ipoib.ARPRequest, SHA: endpoint(qpn, underlay), SPA: addr("10.44.0.99"), TPA: addr(s.a.ip4())}
}
