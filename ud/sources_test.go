package ud

import (
	"net/netip"
	"testing"

	"ipoibd/ud/ipoib"
)

// A host with a list of addresses neither sends from another one nor claims one, by the sender of ARP, the
// source of ND, the target of an advertisement, or a test whether somebody has the address, nor does it act as a router.
// What has no address yet passes.
// Without a list everything does.
func TestSources(t *testing.T) {
	const own4, own6, other4, other6 = "10.0.0.1", "fe80::1", "10.0.0.2", "fe80::2"
	from := func(packet []byte, src string) []byte {
		ip := netip.MustParseAddr(src)
		at := 12
		if ip.Is6() {
			at = 8
		}
		copy(packet[at:], ip.AsSlice())
		return packet
	}
	arpFor := func(op uint16, spa, tpa string) []byte {
		return ipoib.EtherARP{Op: op, SHA: macA, SPA: netip.MustParseAddr(spa), TPA: netip.MustParseAddr(tpa)}.Append(nil)
	}
	arp := func(op uint16, spa string) []byte { return arpFor(op, spa, other4) }
	nd := func(kind byte, src, target string) []byte {
		p := from(ipv6("ff02::1", 58, kind, 255, 72), src)
		copy(p[48:], netip.MustParseAddr(target).AsSlice())
		return p
	}
	passes := func(r Reason) bool { return r != ForeignSource && r != RouterMessage }
	v4, v6 := ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6
	for _, c := range []struct {
		name   string
		typ    ipoib.EtherType
		packet []byte
		want   Reason // SlowPathed: it may pass
	}{
		{"IPv4", v4, from(ipv4(other4, 60), own4), SlowPathed},
		{"IPv6", v6, from(udp6(other6), own6), SlowPathed},
		{"IPv4 of another", v4, from(ipv4(own4, 60), other4), ForeignSource},
		{"IPv6 of another", v6, from(udp6(own6), other6), ForeignSource},
		{"IPv4 of another, mapped", v6, from(udp6(own6), "::ffff:10.0.0.1"), ForeignSource},
		{"DHCP", v4, from(ipv4("255.255.255.255", 300), "0.0.0.0"), SlowPathed},
		{"MLD without an address", v6, from(ipv6("ff02::16", 0, 58, 1, 76), "::"), SlowPathed},
		{"truncated IPv4", v4, ipv4(other4, 60)[:19], ForeignSource},
		{"IPv6 as IPv4", v4, from(udp6(other6), own6), ForeignSource},
		{"ARP request", ipoib.EtherTypeARP, arp(1, own4), SlowPathed},
		{"ARP reply", ipoib.EtherTypeARP, arp(2, own4), SlowPathed},
		{"ARP probe", ipoib.EtherTypeARP, arpFor(1, "0.0.0.0", own4), SlowPathed},
		{"ARP probe for the address of another", ipoib.EtherTypeARP, arp(1, "0.0.0.0"), ForeignSource},
		{"ARP request of another", ipoib.EtherTypeARP, arp(1, other4), ForeignSource},
		{"gratuitous ARP of another", ipoib.EtherTypeARP, arp(2, other4), ForeignSource},
		{"ARP of another in a strange form", ipoib.EtherTypeARP, append([]byte{0, 32}, arp(2, other4)[2:]...), ForeignSource},
		{"RARP", ipoib.EtherTypeRARP, arp(3, other4), SlowPathed},
		{"solicitation", v6, nd(135, own6, other6), SlowPathed},
		{"duplicate address detection", v6, nd(135, "::", own6), SlowPathed},
		{"duplicate address detection of another", v6, nd(135, "::", other6), ForeignSource},
		{"solicitation of another", v6, nd(135, other6, own6), ForeignSource},
		{"advertisement", v6, nd(136, own6, own6), SlowPathed},
		{"advertisement of another", v6, nd(136, own6, other6), ForeignSource},
		{"advertisement of another without a source", v6, nd(136, "::", other6), ForeignSource},
		{"advertisement from another", v6, nd(136, other6, own6), ForeignSource},
		{"router solicitation", v6, nd(133, own6, "::"), SlowPathed},
		{"router advertisement", v6, nd(134, own6, "::"), RouterMessage},
		{"redirect", v6, nd(137, own6, other6), RouterMessage},
		{"router advertisement of another", v6, nd(134, other6, "::"), ForeignSource},
	} {
		rules := testRules()
		if _, got := rules.classify(frame(macB, macA, c.typ, c.packet)); !passes(got) {
			t.Errorf("%s, without a list: %v", c.name, got)
		}
		rules.from = sources{netip.MustParseAddr(own4), netip.MustParseAddr(own6)}
		if _, got := rules.classify(frame(macB, macA, c.typ, c.packet)); passes(got) != passes(c.want) || !passes(got) && got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
