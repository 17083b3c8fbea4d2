package link_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// RFC 4862, section 5.4: an address must not be announced before duplicate address
// detection has found it unique. Two hosts configure the same address, one after the other:
// the first lists it once detection has succeeded, the second never does.
func TestAddressesAreProven(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	taps, hosts := wire(t)
	for _, h := range hosts { // three seconds at least, so that it lasts longer than a thread waits for a processor
		h.Run("sysctl", "-qw", "net.ipv6.conf.ib0.dad_transmits=3")
	}
	prefix := netip.MustParsePrefix("2001:db8::1/64")
	states := watchIn(t, hosts[0], taps[0])

	hosts[0].Run("ip", "address", "add", prefix.String(), "dev", "ib0")
	if flags := flagsOf(t, hosts[0], prefix); flags&unix.IFA_F_TENTATIVE == 0 {
		t.Fatalf("flags %#x: detection was over before the test read them", flags)
	}
	requireNone(t, taps[0], prefix)
	awaitState(t, states, "the address", func(s link.State) bool { return slices.Contains(s.Addrs, prefix) })
	if flags := flagsOf(t, hosts[0], prefix); flags&unproven != 0 {
		t.Errorf("the address was listed while its flags were %#x", flags)
	}

	hosts[1].Run("ip", "address", "add", prefix.String(), "dev", "ib0")
	states = watchIn(t, hosts[1], taps[1])
	const mtu = 1400 // marks the end of what is watched
	for end := time.Now().Add(patience); flagsOf(t, hosts[1], prefix)&unix.IFA_F_DADFAILED == 0; time.Sleep(10 * time.Millisecond) {
		requireNone(t, taps[1], prefix)
		if time.Now().After(end) {
			t.Fatal("detection does not fail")
		}
	}
	requireNone(t, taps[1], prefix)
	must(t, taps[1].SetMTU(mtu))
	awaitState(t, states, "the end", func(s link.State) bool {
		if slices.Contains(s.Addrs, prefix) {
			t.Errorf("an address of another host is listed: %+v", s)
		}
		return s.MTU == mtu
	})
}

const unproven = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

func watchIn(t *testing.T, ns *nstest.Namespace, tap *link.TAP) (states <-chan link.State) {
	t.Helper()
	ns.Do(func() {
		var err error
		states, err = tap.Watch(t.Context())
		must(t, err)
	})
	return states
}

func requireNone(t *testing.T, tap *link.TAP, prefix netip.Prefix) {
	t.Helper()
	s, err := tap.State()
	must(t, err)
	if slices.Contains(s.Addrs, prefix) {
		t.Errorf("State lists %s before detection has finished", prefix)
	}
}

// flagsOf returns the kernel's flags of an address of ib0.
func flagsOf(t *testing.T, ns *nstest.Namespace, prefix netip.Prefix) (flags int) {
	t.Helper()
	ns.Do(func() {
		l, err := netlink.LinkByName("ib0")
		must(t, err)
		list, err := netlink.AddrList(l, netlink.FAMILY_V6)
		must(t, err)
		i := slices.IndexFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(prefix.Addr().AsSlice()) })
		if i < 0 {
			t.Fatalf("%s is not there", prefix)
		}
		flags = list[i].Flags
	})
	return flags
}
