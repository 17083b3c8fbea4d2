package link

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// State lists the first maxAddrs addresses of each family of an interface that has more.
func TestAddressesAreBounded(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	var batch strings.Builder
	for i := range 2 * maxAddrs {
		fmt.Fprintf(&batch, "address add 10.1.%d.%d/32 dev ib0\n", i/256, i%256)
		fmt.Fprintf(&batch, "address add 2001:db8::%x/128 dev ib0 nodad\n", 1+i)
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ip(t, "-batch", file)
	s, err := tap.State()
	if err != nil {
		t.Fatal(err)
	}
	var v4, v6 int
	for _, p := range s.Addrs {
		if p.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	if v4 != maxAddrs || v6 != maxAddrs || !slices.Contains(s.Addrs, netip.MustParsePrefix("10.1.0.0/32")) {
		t.Errorf("%d IPv4 and %d IPv6 addresses, want the first %d each: %v...", v4, v6, maxAddrs, s.Addrs[:3])
	}
}

// State lists the interface's own end of each address, with its prefix, and no address of
// another interface.
func TestAddressesOfEveryForm(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	mustOpen(t, "ib1")
	ip(t, "address", "add", "192.0.2.1/24", "dev", "ib0")
	ip(t, "address", "add", "192.0.2.2/24", "dev", "ib0", "label", "ib0:second")
	ip(t, "address", "add", "198.51.100.1", "peer", "198.51.100.9/32", "dev", "ib0")
	ip(t, "address", "add", "2001:db8::1/64", "dev", "ib0", "nodad")
	ip(t, "address", "add", "2001:db8::2", "peer", "2001:db8::9/128", "dev", "ib0", "nodad")
	ip(t, "address", "add", "203.0.113.1/24", "dev", "ib1")
	s, err := tap.State()
	want := []netip.Prefix{
		netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("198.51.100.1/32"),
		netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/128"),
	}
	if err != nil || !slices.Equal(s.Addrs, want) {
		t.Errorf("addresses %v, %v; want %v", s.Addrs, err, want)
	}
}

// A truncated message yields no address and does no harm.
func TestCutAddressIsNone(t *testing.T) {
	whole := []byte{
		2, 24, 0x80, 0, 7, 0, 0, 0, // struct ifaddrmsg: IPv4, /24, permanent, index 7
		8, 0, 1, 0, 192, 0, 2, 1, // IFA_ADDRESS
		8, 0, 2, 0, 192, 0, 2, 1, // IFA_LOCAL
	}
	index, p, ok := parseAddr(whole)
	if index != 7 || p != netip.MustParsePrefix("192.0.2.1/24") || !ok {
		t.Fatalf("%d, %v, %t", index, p, ok)
	}
	for n := range whole {
		if _, p, ok := parseAddr(whole[:n]); ok && n < 16 {
			t.Errorf("%d bytes: %v", n, p)
		}
	}
	if _, p, ok := parseAddr(append(slices.Clone(whole[:8]), 9, 0, 1, 0, 192, 0, 2, 1)); ok {
		t.Errorf("an attribute longer than the message: %v", p)
	}
}
