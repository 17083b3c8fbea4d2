package link

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func via(to, gateway string) Route {
	r := Route{To: netip.MustParsePrefix(to)}
	if gateway != "" {
		r.Via = netip.MustParseAddr(gateway)
	}
	return r
}

// shows requires that the lines that ip prints about ib0 contain exactly the wanted ones of all.
func shows(t *testing.T, when string, args []string, all []string, want ...string) {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
	for _, s := range all {
		wanted := slices.Contains(want, s)
		if got := strings.Contains(string(out), s+" "); got != wanted {
			t.Errorf("%s: %s is listed: %v, want %v\n%s", when, s, got, wanted, out)
		}
	}
}

var (
	addrLines  = []string{"192.0.2.1/24", "192.0.2.2/24", "198.51.100.7/24", "2001:db8::1/64", "2001:db8::2/64"}
	routeLines = []string{"203.0.113.0/24 via 192.0.2.254", "203.0.113.0/24 via 192.0.2.253", "198.18.0.0/15", "default via 192.0.2.254", "100.64.0.0/10"}
	v6Routes   = []string{"2001:db8:1::/48 via 2001:db8::fe", "2001:db8:2::/48"}
)

func showsAddrs(t *testing.T, when string, want ...string) {
	t.Helper()
	shows(t, when, []string{"address", "show", "dev", "ib0"}, addrLines, want...)
}

func showsRoutes(t *testing.T, when string, want ...string) {
	t.Helper()
	shows(t, when, []string{"-4", "route", "show", "dev", "ib0"}, routeLines, want...)
}

// Assign adds what is missing, takes back what an earlier holder of the interface has assigned,
// and leaves alone what others have set.
func TestAssign(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	ip(t, "address", "add", "198.51.100.7/24", "dev", "ib0")
	ip(t, "address", "add", "192.0.2.1/24", "dev", "ib0") // assigned too
	first := Assignment{
		Addrs:  prefixes("192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64"),
		Routes: []Route{via("203.0.113.0/24", "192.0.2.254"), via("198.18.0.0/15", ""), via("0.0.0.0/0", "192.0.2.254"), via("2001:db8:1::/48", "2001:db8::fe"), via("2001:db8:2::/48", "")},
	}
	for range 2 { // idempotent
		if err := tap.Assign(first); err != nil {
			t.Fatal(err)
		}
	}
	showsAddrs(t, "down", "192.0.2.1/24", "192.0.2.2/24", "198.51.100.7/24", "2001:db8::1/64")
	showsRoutes(t, "down")

	if err := tap.BringUp(); err != nil {
		t.Fatal(err)
	}
	if err := tap.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	ip(t, "route", "add", "100.64.0.0/10", "dev", "ib0")
	if err := tap.Assign(first); err != nil {
		t.Fatal(err)
	}
	if s, err := tap.State(); err != nil || !s.Up {
		t.Errorf("state %+v, %v, want it up", s, err)
	}
	showsRoutes(t, "up", "203.0.113.0/24 via 192.0.2.254", "198.18.0.0/15", "default via 192.0.2.254", "100.64.0.0/10")
	shows(t, "up", []string{"-6", "route", "show", "dev", "ib0"}, v6Routes, v6Routes...)

	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	tap = mustOpen(t, "ib0")
	second := Assignment{Addrs: prefixes("192.0.2.1/24", "2001:db8::2/64"), Routes: []Route{via("203.0.113.0/24", "192.0.2.253")}}
	if err := tap.Assign(second); err != nil {
		t.Fatal(err)
	}
	showsAddrs(t, "after a restart", "192.0.2.1/24", "198.51.100.7/24", "2001:db8::2/64")
	showsRoutes(t, "after a restart", "203.0.113.0/24 via 192.0.2.253", "100.64.0.0/10")
	shows(t, "after a restart", []string{"-6", "route", "show", "dev", "ib0"}, v6Routes)

	if err := tap.Assign(Assignment{}); err != nil {
		t.Fatal(err)
	}
	showsAddrs(t, "nothing assigned", "192.0.2.1/24", "198.51.100.7/24")
	showsRoutes(t, "nothing assigned", "100.64.0.0/10")
}

// The link-local address is that of the MAC even where random ones are the default, if that is assigned.
func TestAssignLinkLocalOfTheMAC(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for name, value := range map[string]string{"addr_gen_mode": "3", "accept_dad": "0"} { // random; no delay
		for _, of := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/"+name, []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]bool{"ib1": false, "ib2": true} {
		tap := mustOpen(t, name)
		if err := errors.Join(tap.Assign(Assignment{LinkLocalOfMAC: want}), tap.BringUp(), tap.SetCarrier(true)); err != nil {
			t.Fatal(err)
		}
		var st State
		for end := time.Now().Add(10 * time.Second); len(st.Addrs) != 1; time.Sleep(10 * time.Millisecond) {
			var err error
			if st, err = tap.State(); err != nil || time.Now().After(end) {
				t.Fatalf("%s: %+v, %v, want the link-local address", name, st, err)
			}
		}
		m := st.MAC
		derived := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
		if got := st.Addrs[0].Addr(); (got == derived) != want {
			t.Errorf("%s: address %v; that of the MAC is %v, wanted: %t", name, got, derived, want)
		}
		if err := errors.Join(tap.SetMTU(1000), tap.Assign(Assignment{LinkLocalOfMAC: true})); err != nil {
			t.Errorf("without IPv6: %v", err)
		}
	}
}

// What fails is named and does not keep the rest from being set.
func TestAssignReportsEachFailure(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	if err := tap.BringUp(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/ib0/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	err := tap.Assign(Assignment{
		Addrs:  prefixes("2001:db8::1/64", "192.0.2.1/24"),
		Routes: []Route{via("203.0.113.0/24", "100.64.0.1"), via("198.18.0.0/15", "")},
	})
	for _, want := range []string{"address 2001:db8::1/64: ", "route 203.0.113.0/24 via 100.64.0.1: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if !errors.Is(err, unix.EACCES) || !errors.Is(err, unix.ENETUNREACH) || errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "disable_ipv6") {
		t.Errorf("error %v, want EACCES because of disable_ipv6, and ENETUNREACH", err)
	}
	showsAddrs(t, "with failures", "192.0.2.1/24")
	showsRoutes(t, "with failures", "198.18.0.0/15")
}

// Only an MTU that is too small for IPv6 is blamed for an IPv6 address that the kernel calls invalid.
func TestInvalidAddressAndTheMTU(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	invalid := Assignment{Addrs: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("2001:db8::1"), 129)}}
	const blame = "IPv6 needs an MTU of at least 1280"
	if err := tap.Assign(invalid); !errors.Is(err, unix.EINVAL) || strings.Contains(err.Error(), blame) {
		t.Errorf("an invalid address: %v, want EINVAL, and the MTU not blamed", err)
	}
	if err := tap.SetMTU(1000); err != nil {
		t.Fatal(err)
	}
	err := tap.Assign(Assignment{Addrs: prefixes("2001:db8::1/64")})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), blame+", and the interface has 1000") {
		t.Errorf("at an MTU of 1000: %v, want EINVAL, and the MTU blamed", err)
	}
}
