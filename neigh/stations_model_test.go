package neigh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/ud/ipoib"
)

// naiveStations are stations as a list of what has happened, without an index.
type naiveStations struct {
	own, master ipoib.MAC
	given       []netip.Prefix
	seen        map[ipoib.MAC]time.Time // those behind ib0
	order       []ipoib.MAC             // of their first frames
	claims      []naiveClaim            // at most one for an address, the latest last
	absent      map[netip.Addr]absence
	router      map[ipoib.MAC]routerKind
	gate        ipoib.MAC // zero: none
}

// naiveClaim is a claim of an address, by ib0 itself if mac is zero.
type naiveClaim struct {
	mac ipoib.MAC
	ip  netip.Addr
}

func (n *naiveStations) home() ipoib.MAC {
	if n.master.IsZero() {
		return n.own
	}
	return n.master
}

func (n *naiveStations) of(ip netip.Addr) (ipoib.MAC, bool) {
	for _, c := range n.claims {
		switch {
		case c.ip != ip:
		case c.mac.IsZero():
			return n.own, true
		default:
			return c.mac, true
		}
	}
	if n.isGiven(ip) {
		return n.home(), true
	}
	a, absent := n.absent[ip]
	switch {
	case !a.last.IsZero():
		return a.last, true
	case n.isBroadcast(ip):
		return ipoib.Broadcast, true
	}
	to := n.home()
	if ip.Is6() && !n.gate.IsZero() {
		to = n.gate
	}
	local, any := ip.IsLinkLocalUnicast(), false
	for _, p := range n.given {
		if !p.Addr().IsLinkLocalUnicast() && p.Addr().Is4() == ip.Is4() {
			any, local = true, local || p.Contains(ip)
		}
	}
	return to, absent || any && !local
}

func (n *naiveStations) isGiven(ip netip.Addr) bool {
	return slices.ContainsFunc(n.given, func(p netip.Prefix) bool { return p.Addr() == ip })
}

func (n *naiveStations) isBroadcast(ip netip.Addr) bool {
	return ip == netip.MustParseAddr("10.0.0.255") && slices.ContainsFunc(n.given, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (n *naiveStations) release(ip netip.Addr) {
	delete(n.absent, ip)
	n.claims = slices.DeleteFunc(n.claims, func(c naiveClaim) bool { return c.ip == ip })
}

func (n *naiveStations) claim(m ipoib.MAC, ip netip.Addr) {
	if _, known := n.seen[m]; m == n.own {
		m = ipoib.MAC{}
	} else if !known {
		return
	}
	if n.isGiven(ip) || n.isBroadcast(ip) {
		return
	}
	n.release(ip)
	n.claims = append(n.claims, naiveClaim{m, ip})
	count := 0
	for _, c := range slices.Backward(n.claims) {
		if c.mac == m {
			count++
		}
		if count > maxIPsPerStation {
			n.release(c.ip)
			break
		}
	}
}

func (n *naiveStations) sends(m ipoib.MAC, now time.Time) {
	if _, known := n.seen[m]; m != n.own {
		if n.seen[m] = now; !known {
			n.order = append(n.order, m)
		}
	}
}

func (n *naiveStations) forget(m ipoib.MAC) {
	delete(n.seen, m)
	n.order = slices.DeleteFunc(n.order, func(other ipoib.MAC) bool { return other == m })
	n.claims = slices.DeleteFunc(n.claims, func(c naiveClaim) bool { return c.mac == m })
	delete(n.router, m)
	n.choose()
}

// choose chooses the router: the best, and of several that at home, or else the present one, or else the first seen.
func (n *naiveStations) choose() {
	best := n.home()
	for _, m := range slices.Concat([]ipoib.MAC{n.gate, n.own}, n.order) {
		if n.router[m] > n.router[best] {
			best = m
		}
	}
	if n.gate = best; best == n.home() {
		n.gate = ipoib.MAC{}
	}
}

// TestStationsAgreeWithANaiveModel: for random events, the indexes, the snapshot's table and the naive model agree about
// the station of each address.
func TestStationsAgreeWithANaiveModel(t *testing.T) {
	macs := []ipoib.MAC{{2, 1}, {2, 2}, {2, 3}, {2, 4}}
	prefixes := []string{"10.0.0.1/24", "10.0.0.2/24", "fe80::1/64", "fd00::1/64", "192.0.2.1/32"}
	var ips []netip.Addr
	for i := range byte(maxIPsPerStation + 4) {
		ips = append(ips, netip.AddrFrom4([4]byte{10, 0, 0, i + 1}))
	}
	ips = append(ips, ip("10.0.0.255"), ip("192.0.2.1"), ip("192.0.2.2"), ip("fe80::1"), ip("fe80::2"), ip("fd00::1"), ip("fd00::2"), ip("2001:db8::1"))
	rapid.Check(t, func(rt *rapid.T) {
		var s stations
		s.init()
		now := time.Unix(1e9, 0)
		n := naiveStations{seen: map[ipoib.MAC]time.Time{}, absent: map[netip.Addr]absence{}, router: map[ipoib.MAC]routerKind{}}
		n.own = macs[0]
		s.setOwn(n.own, now)
		mac := func(t *rapid.T) ipoib.MAC { return pick(t, "MAC", macs) }
		rt.Repeat(map[string]func(*rapid.T){
			"own": func(t *rapid.T) {
				m := mac(t)
				s.setOwn(m, now)
				if m != n.own {
					kind := max(n.router[n.own], n.router[m])
					n.forget(m)
					delete(n.router, n.own)
					n.router[m] = kind
					if n.gate == n.own {
						n.gate = m
					}
				}
				n.own = m
				n.choose()
			},
			"master": func(t *rapid.T) {
				former := n.home()
				n.master = pick(t, "master", append(macs, ipoib.MAC{}))
				s.setMaster(n.master, now)
				if kind := n.router[former]; kind != notRouter && n.home() != former {
					n.sends(n.home(), now)
					n.router[n.home()] = max(n.router[n.home()], kind)
					delete(n.router, former)
				}
				n.choose()
			},
			"given": func(t *rapid.T) {
				n.given = nil
				for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom(prefixes), 0, 3, rapid.ID).Draw(t, "given") {
					n.given = append(n.given, netip.MustParsePrefix(p))
					n.release(netip.MustParsePrefix(p).Addr())
				}
				s.setGiven(n.given)
			},
			"frame": func(t *rapid.T) {
				m := mac(t)
				if !s.admit(m, now) {
					t.Fatal("refused")
				}
				n.sends(m, now)
			},
			"claims": func(t *rapid.T) {
				m := mac(t)
				first := rapid.IntRange(0, len(ips)-1).Draw(t, "first")
				for _, ip := range ips[first:min(len(ips), first+rapid.SampledFrom([]int{1, 1, 2, len(ips)}).Draw(t, "number"))] {
					s.claim(m, ip)
					n.claim(m, ip)
				}
			},
			"moved to a peer": func(t *rapid.T) {
				ip := pick(t, "IP", ips)
				s.leave(ip, now)
				last := n.absent[ip].last
				for _, c := range n.claims {
					if c.ip == ip {
						if last = c.mac; last.IsZero() {
							last = n.own
						}
					}
				}
				if n.isGiven(ip) {
					return
				}
				if n.release(ip); !last.IsZero() {
					n.absent[ip] = absence{now.Add(absentFor), last}
				}
			},
			"unanswered": func(t *rapid.T) {
				ip := pick(t, "IP", ips)
				if _, known := n.of(ip); !known {
					n.absent[ip] = absence{until: now.Add(absentFor)}
				}
				s.lacks(ip, now)
			},
			"router": func(t *rapid.T) {
				m, nd := mac(t), pick(t, "message", []ipoib.ND{
					{Type: ipoib.NDRouterAdvert, Lifetime: 1},
					{Type: ipoib.NDRouterAdvert},
					{Type: ipoib.NDNeighborAdvert, Flags: ipoib.NAFlagRouter},
					{Type: ipoib.NDNeighborAdvert},
				})
				s.sentND(m, nd)
				if _, known := n.seen[m]; known || m == n.own {
					n.router[m] = n.router[m].after(nd)
					n.choose()
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(pick(t, "how long", []time.Duration{time.Second, absentFor, stationAge / 2}))
				s.sweep(now)
				for m, seen := range maps.Clone(n.seen) {
					if now.Sub(seen) >= stationAge {
						n.forget(m)
					}
				}
				maps.DeleteFunc(n.absent, func(_ netip.Addr, a absence) bool { return !a.until.After(now) })
			},
			"": func(t *rapid.T) {
				if err := s.check(); err != nil {
					t.Fatal(err)
				}
				for _, ip := range ips {
					got, known := s.of(ip)
					if want, is := n.of(ip); got != want || known != is {
						t.Fatalf("%v: %v %v, want %v %v\n%+v", ip, got, known, want, is, n)
					}
				}
				var got []ipoib.MAC
				for _, st := range s.behind() {
					got = append(got, st.mac)
				}
				slices.SortFunc(got, compareMAC)
				if want := slices.SortedFunc(maps.Keys(n.seen), compareMAC); !slices.Equal(got, want) {
					t.Fatalf("stations %v, want %v", got, want)
				}
			},
		})
	})
}

func compareMAC(a, b ipoib.MAC) int { return slices.Compare(a[:], b[:]) }

func (n naiveStations) String() string {
	return fmt.Sprintf("own %v master %v given %v seen %v claims %v absent %v routers %v gate %v", n.own, n.master, n.given, n.seen, n.claims, n.absent, n.router, n.gate)
}
