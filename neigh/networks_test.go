package neigh

import (
	"net/netip"
	"slices"
	"testing"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestWhatIsOnTheLink(t *testing.T) {
	for _, c := range []struct {
		given      []string
		ip         string
		local, all bool
	}{
		{nil, "10.0.0.9", true, false},
		{nil, "fd00::9", true, false},
		{[]string{"fd00::1/64"}, "10.0.0.9", true, false}, // no network of the family
		{[]string{"10.0.0.1/24"}, "fd00::9", true, false},
		{[]string{"10.0.0.1/24"}, "10.0.0.9", true, false},
		{[]string{"10.0.0.1/24"}, "10.0.1.9", false, false},
		{[]string{"fd00::1/64"}, "fd00:0:0:1::9", false, false},
		{[]string{"fd00::1/64"}, "fe80::9", true, false},
		{[]string{"10.0.0.1/24"}, "169.254.0.9", true, false},
		{[]string{"10.0.0.1/24"}, "10.0.0.255", true, true},
		{[]string{"10.0.0.1/24", "10.0.0.1/16"}, "10.0.0.255", true, true},
		{[]string{"10.0.0.1/16", "10.0.0.1/24"}, "10.0.0.255", true, true},
		{[]string{"10.0.0.1/30"}, "10.0.0.3", true, true},
		{[]string{"10.0.0.2/31"}, "10.0.0.3", true, false},
		{[]string{"10.0.0.3/32"}, "10.0.0.3", true, false},
		{[]string{"fd00::1/24"}, "fd00:ff:ffff:ffff:ffff:ffff:ffff:ffff", true, false},
		{[]string{"fd00::1/126"}, "fd00::3", true, false},
	} {
		_, links := networksOf(prefixes(c.given...))
		if local, all := links.find(ip(c.ip)); local != c.local || all != c.all {
			t.Errorf("%v: %s is local %t, for all %t; want %t, %t", c.given, c.ip, local, all, c.local, c.all)
		}
	}
}

func TestNetworksOnce(t *testing.T) {
	ips, links := networksOf(prefixes("10.0.0.1/24", "10.0.0.2/24", "10.0.0.1/16", "fe80::1/64", "fe80::1/64", "10.0.0.2/24"))
	if want := []netip.Addr{ip("10.0.0.1"), ip("10.0.0.2"), ip("fe80::1")}; !slices.Equal(ips, want) {
		t.Errorf("addresses %v, want %v", ips, want)
	}
	if want := prefixes("10.0.0.0/24", "10.0.0.0/16"); !slices.Equal(links, want) {
		t.Errorf("networks %v, want %v", links, want)
	}
}
