package port

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// mgids returns the groups of IP addresses in the default partition.
func mgids(ips ...string) (out []hca.GID) {
	for _, ip := range ips {
		out = append(out, ipoib.GroupMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault, netip.MustParseAddr(ip)))
	}
	return out
}

func ipsOf(ips ...string) (out []netip.Addr) {
	for _, ip := range ips {
		out = append(out, netip.MustParseAddr(ip))
	}
	return out
}

// always allows all groups of stations.
func always() bool { return true }

func TestMulticastList(t *testing.T) {
	l := NewMulticastList(0x7fff) // the MGIDs of limited members are those of full ones
	for _, c := range []struct {
		name         string
		host, behind []netip.Addr
		join, leave  []hca.GID
	}{
		{"nothing: all nodes", nil, nil, mgids("224.0.0.1", "ff02::1"), nil},
		{"nothing new", ipsOf("224.0.0.1"), ipsOf("ff02::1"), nil, nil},
		{
			"both families, in the order listed", ipsOf("ff02::1:ff00:7", "239.1.1.1"), ipsOf("224.0.0.251", "239.1.1.1"),
			mgids("ff02::1:ff00:7", "239.1.1.1", "224.0.0.251"), nil,
		},
		{"the host leaves, a guest stays", nil, ipsOf("239.1.1.1"), nil, mgids("ff02::1:ff00:7", "224.0.0.251")},
		{
			"no groups", ipsOf("10.0.0.1", "255.255.255.255", "fe80::1", "ff01::1", "ff01::fb"), ipsOf("::", "0.0.0.0"),
			nil, mgids("239.1.1.1"),
		},
		{"an IPv4 group in IPv6 form, of another scope", ipsOf("::ffff:239.1.1.2", "ff05::2"), nil, mgids("239.1.1.2", "ff02::2"), nil},
		{"everything left", nil, nil, nil, mgids("239.1.1.2", "ff02::2")},
	} {
		join, leave := l.Want(c.host, c.behind, always)
		if !slices.Equal(join, c.join) || !slices.Equal(leave, c.leave) || l.Excess() != 0 {
			t.Errorf("%s: join %v, leave %v, %d more", c.name, join, leave, l.Excess())
		}
	}
}

// numbered returns groups with the numbers from first on.
func numbered(first, n int) (out []netip.Addr) {
	for i := range n {
		out = append(out, netip.AddrFrom4([4]byte{239, 1, byte((first + i) >> 8), byte(first + i)}))
	}
	return out
}

// With more groups than there may be, those that were chosen first stay, but the host's displace those of guests that
// were chosen last.
func TestMulticastListIsBounded(t *testing.T) {
	l := NewMulticastList(hca.PKeyDefault)
	room := MaxGroups - 1 - len(everyNode)
	first, more := numbered(0, room), numbered(1000, 300)
	if join, _ := l.Want(nil, first, always); len(join) != MaxGroups-1 || l.Excess() != 0 {
		t.Fatalf("%d joined, %d more", len(join), l.Excess())
	}
	if join, leave := l.Want(nil, slices.Concat(more, first), always); len(join)+len(leave) != 0 || l.Excess() != 300 {
		t.Errorf("a guest wants more: join %v, leave %v, %d more", join, leave, l.Excess())
	}
	join, leave := l.Want(numbered(2000, 2), slices.Concat(more, first), always)
	if !slices.Equal(join, l.groups(numbered(2000, 2))) || !slices.Equal(leave, l.groups(first[room-2:])) || l.Excess() != 302 {
		t.Errorf("the host wants two: join %v, leave %v, %d more", join, leave, l.Excess())
	}
	join, leave = l.Want(nil, slices.Concat(more, first[1:]), always)
	if !slices.Equal(join, l.groups(more[:3])) || !slices.Equal(leave, l.groups(slices.Concat(first[:1], numbered(2000, 2)))) {
		t.Errorf("there is room again: join %v, leave %v", join, leave)
	}
}

// Without permission, new groups of stations wait. Those of the host do not, and groups that were chosen stay.
func TestMulticastListPostpones(t *testing.T) {
	l := NewMulticastList(hca.PKeyDefault)
	allowed := 0
	allow := func() bool { allowed--; return allowed >= 0 }
	want := func(name string, host, behind []netip.Addr, joined, left int, postponed bool) {
		t.Helper()
		join, leave := l.Want(host, behind, allow)
		if len(join) != joined || len(leave) != left || l.Postponed() != postponed || (l.Excess() > 0) != postponed {
			t.Errorf("%s: joined %d, left %d, postponed %t, %d more", name, len(join), len(leave), l.Postponed(), l.Excess())
		}
	}
	allowed = 2
	want("two of five", nil, numbered(0, 5), len(everyNode)+2, 0, true)
	allowed = 0
	want("none", nil, numbered(0, 5), 0, 0, true)
	if allowed != -1 {
		t.Errorf("asked for permission %d times, want once: it was refused", -allowed)
	}
	want("the host wants them all", numbered(0, 5), nil, 3, 0, false)
	want("and no longer", nil, numbered(0, 5), 0, 0, false)
	allowed = 1
	want("others", nil, numbered(5, 2), 1, 5, true)
	allowed = 9
	want("the rest", nil, numbered(5, 2), 1, 0, false)
	if allowed != 8 {
		t.Errorf("%d permissions left, want 8: one was needed", allowed)
	}
}

// A naive model keeps when each group was chosen, and sorts all that are wanted by owner, by that, and by their places in
// the lists.
func TestMulticastListIsThatOfAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewMulticastList(hca.PKeyDefault)
		chosen := map[hca.GID]int{} // when it was chosen
		members := map[hca.GID]bool{}
		group := rapid.Map(rapid.IntRange(0, 330), func(i int) netip.Addr { return numbered(i, 1)[0] })
		draw := func(name string) []netip.Addr {
			from := rapid.IntRange(0, 330).Draw(t, name+" from")
			return append(numbered(from, rapid.IntRange(0, 330-from).Draw(t, name+" to")), rapid.SliceOfN(group, 0, 4).Draw(t, name+" and")...)
		}
		time := 0
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			host, behind := draw("host"), draw("behind")
			join, leave := l.Want(host, behind, always)
			want := model(chosen, slices.Concat(everyNode[:], host), behind)
			for _, g := range leave {
				if !members[g] {
					t.Fatalf("left %v, of which it was no member", g)
				}
				delete(members, g)
			}
			for _, g := range join {
				if members[g] {
					t.Fatalf("joined %v again", g)
				}
				members[g] = true
			}
			excess := max(0, len(want)-(MaxGroups-1))
			want = want[:len(want)-excess]
			if len(members) != len(want) || l.Excess() != excess {
				t.Fatalf("%d members and %d more, want %d and %d", len(members), l.Excess(), len(want), excess)
			}
			next := map[hca.GID]int{}
			for _, g := range want {
				if !members[g] {
					t.Fatalf("not a member of %v", g)
				}
				if at, ok := chosen[g]; ok {
					next[g] = at
				} else {
					time++
					next[g] = time
				}
			}
			chosen = next
		}
	})
}

// model returns the groups that are wanted, the most important first.
func model(chosen map[hca.GID]int, host, behind []netip.Addr) (out []hca.GID) {
	type wish struct{ class, when, place int }
	all := map[hca.GID]wish{}
	for class, ips := range [][]netip.Addr{host, behind} {
		for place, ip := range ips {
			g := mgids(fmt.Sprint(ip))[0]
			if _, ok := all[g]; !ok {
				when, ok := chosen[g]
				if !ok {
					when = 1 << 30
				}
				all[g] = wish{class, when, place}
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(a, b hca.GID) int {
		x, y := all[a], all[b]
		return cmp.Or(x.class-y.class, x.when-y.when, x.place-y.place)
	})
	return out
}

// A host behind a flood of guests' groups stays cheap: the cost is that of reading the lists.
func BenchmarkMulticastList(b *testing.B) {
	l := NewMulticastList(hca.PKeyDefault)
	host, behind := numbered(0, 20), numbered(100, 60000)
	for b.Loop() {
		l.Want(host, behind, always)
	}
}
