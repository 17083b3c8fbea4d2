package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// hiddenChains are the chains of extension headers behind which the kernel takes
// neighbour discovery, those in fragments if it is told to; each header has 8 bytes
// and asks for nothing: hop-by-hop, routing without segments left, fragment, and
// destination options.
var hiddenChains = [][]byte{{0}, {43}, {44}, {60}, {60, 60}, {0, 60}, {60, 43, 60}, {0, 44, 60}}

// hide puts an IPv6 packet's payload behind extension headers.
func hide(packet []byte, chain ...byte) []byte {
	out := append([]byte(nil), packet[:40]...)
	at := 6
	for _, h := range chain {
		out[at], at = h, len(out)
		header := []byte{0, 0, 0, 0, 0, 0, 0, 0}
		if h == 0 || h == 60 {
			header[2], header[3] = 1, 4 // PadN
		}
		out = append(out, header...)
	}
	out[at] = packet[6]
	out = append(out, packet[40:]...)
	binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
	return out
}

// poison is an advertisement, in the form of the host's side, that says that an
// address is at the broadcast MAC.
func poison(src, dst netip.Addr) []byte {
	body := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, src.AsSlice()...)
	body = append(body, 2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	sum := uint32(len(body)) + 58
	packet := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), 58, 255}, src.AsSlice()...)
	packet = append(packet, dst.AsSlice()...)
	for _, part := range [][]byte{packet[8:], body} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	return append(packet, body...)
}

// Neighbour discovery behind extension headers reaches no kernel, from the fabric
// and from the host, to one station and to all: each message is dropped and counted,
// and what the hosts believe of each other stays (security review H1, test 4).
func TestR07AbuseHiddenNeighbourDiscovery(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	for _, h := range s.honest() {
		h.Run("sysctl", "-qw", "net.ipv6.conf."+ifName+".suppress_frag_ndisc=0")
	}
	b := addr(s.b.ip6())
	port := newPacketSocket(s.b)
	ownMAC, peerMAC := mac(s.b.iface().MAC), mac(s.b.iface().Peers[0].MAC)
	var packets [][]byte
	var toGroup []bool
	for _, dst := range []string{s.a.ip6(), "ff02::1"} {
		for _, chain := range hiddenChains {
			na := poison(b, addr(dst))
			for typ := byte(133); typ <= 137; typ++ {
				packet := hide(na, chain...)
				packet[40+8*len(chain)] = typ
				packets, toGroup = append(packets, packet), append(toGroup, addr(dst).IsMulticast())
			}
		}
	}
	want := uint64(len(packets))
	s.a.expect("hidden, from the fabric", map[string]uint64{"rx_drop_hidden_nd": want}, func() {
		for _, p := range packets {
			s.mallory.send(s.a.underlay(), rightPacket(s.a.qp().QPN, message(ipoib.EtherTypeIPv6, p)))
		}
	})
	s.b.expect("hidden, from the host", map[string]uint64{"tx_drop_hidden_nd": want}, func() {
		for i, p := range packets {
			dst := peerMAC
			if toGroup[i] {
				dst = ipoib.GroupMAC(addr("ff02::1"))
			}
			port.send(ether(dst, ownMAC, ipoib.EtherTypeIPv6, p))
		}
	})
	if neighbours := s.a.Run("ip", "-6", "neigh", "show", "dev", ifName); strings.Contains(neighbours, "ff:ff:ff:ff:ff:ff") {
		t.Errorf("a host was made to believe a broadcast MAC:\n%s", neighbours)
	}
	group := rightPacket(uint32(hca.QPNMulticast), message(ipoib.EtherTypeIPv6, packets[len(packets)-1]))
	s.a.expect("hidden, to the group", map[string]uint64{"rx_drop_hidden_nd": volley}, func() {
		s.b.expect("hidden, to the group", map[string]uint64{"rx_drop_hidden_nd": volley}, func() {
			for range volley {
				s.mallory.send(groupAddr, group)
			}
		})
	})
	s.end(1)
}

// The kernel does take such messages: one that comes to it on a plain interface
// changes what it believes, so the test above shows something.
func TestKernelTakesHiddenNeighbourDiscovery(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.Run("sysctl", "-qw", "net.ipv6.conf."+nstest.Dev+".suppress_frag_ndisc=0")
	port := newPacketSocketOn(b, nstest.Dev)
	to, from := a.linkAddr(nstest.Dev), b.linkAddr(nstest.Dev)
	for _, chain := range hiddenChains {
		if b.Command("ping", "-n", "-c", "1", nstest.IPv6(0)).Run() != nil {
			t.Fatal("the hosts do not reach each other")
		}
		packet := hide(poison(addr(nstest.IPv6(1)), addr(nstest.IPv6(0))), chain...)
		port.send(ether(to, from, ipoib.EtherTypeIPv6, packet))
		eventually(t, countLimit, fmt.Sprintf("the kernel believes what is behind %v", chain), func() bool {
			return strings.Contains(a.Run("ip", "-6", "neigh", "show", nstest.IPv6(1), "dev", nstest.Dev), "ff:ff:ff:ff:ff:ff")
		})
		a.Run("ip", "-6", "neigh", "flush", "dev", nstest.Dev)
		b.Run("ip", "-6", "neigh", "flush", "dev", nstest.Dev)
	}
}

// linkAddr is the MAC of a netdev.
func (h *host) linkAddr(name string) (m ipoib.MAC) {
	h.tb.Helper()
	h.Do(func() {
		dev, err := net.InterfaceByName(name)
		if err != nil {
			h.tb.Fatal(err)
		}
		m = ipoib.MAC(dev.HardwareAddr)
	})
	return m
}
