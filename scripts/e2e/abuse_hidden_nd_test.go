package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// hiddenChains are chains of extension headers behind which the kernel accepts neighbour
// discovery, in fragments if suppress_frag_ndisc is off. Each header has 8 bytes and no
// effect: hop-by-hop options, routing without segments left, fragment, or destination
// options.
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

// poison returns a neighbour advertisement in the Ethernet form that claims that an
// address is at the broadcast MAC.
func poison(src, dst netip.Addr) []byte {
	body := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, src.AsSlice()...)
	body = append(body, 2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	packet := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), 58, 255}, src.AsSlice()...)
	packet = append(packet, dst.AsSlice()...)
	pseudoHeader := append(slices.Clone(packet[8:]), 0, 0, 0, byte(len(body)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(body[2:], hca.IPv4Checksum(append(pseudoHeader, body...))) // the Internet checksum
	return append(packet, body...)
}

// Neighbour discovery behind extension headers does not reach any kernel, neither from
// the fabric nor from the host, whether unicast or multicast. Each message is dropped and
// counted, and the neighbour tables of the hosts do not change.
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
		t.Errorf("a host has a broadcast MAC in its neighbour table:\n%s", neighbours)
	}
	group := rightPacket(hca.QPNMulticast, message(ipoib.EtherTypeIPv6, packets[len(packets)-1]))
	s.a.expect("hidden, to the group", map[string]uint64{"rx_drop_hidden_nd": volley}, func() {
		s.b.expect("hidden, to the group", map[string]uint64{"rx_drop_hidden_nd": volley}, func() {
			for range volley {
				s.mallory.send(groupAddr, group)
			}
		})
	})
	s.end(1)
}

// The kernel accepts such messages on a plain interface and changes its neighbour table.
// So the test above would fail if they reached the kernel.
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
		eventually(t, countLimit, fmt.Sprintf("the kernel accepts the advertisement behind %v", chain), func() bool {
			return strings.Contains(a.Run("ip", "-6", "neigh", "show", nstest.IPv6(1), "dev", nstest.Dev), "ff:ff:ff:ff:ff:ff")
		})
		a.Run("ip", "-6", "neigh", "flush", "dev", nstest.Dev)
		b.Run("ip", "-6", "neigh", "flush", "dev", nstest.Dev)
	}
}

// linkAddr returns the MAC of a netdev.
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
