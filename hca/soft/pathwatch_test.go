package soft

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// pathPort is a transport that knows its paths.
type pathPort struct {
	transport.Transport
	changed chan struct{}

	mu      sync.Mutex
	mtus    map[netip.Addr]int // of narrow paths; 0: no route
	routes  map[netip.Addr]int // of narrow routes
	queries int
}

func (p *pathPort) PathMTU(dst netip.Addr) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queries++
	mtu, narrow := p.mtus[dst]
	switch {
	case !narrow:
		return p.State().MTU, nil
	case mtu == 0:
		return 0, errors.New("no route")
	}
	return mtu, nil
}

func (p *pathPort) RouteMTU(dst netip.Addr) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mtu, narrow := p.routes[dst]; narrow {
		return mtu, nil
	}
	return p.State().MTU, nil
}

func (p *pathPort) PathChanged() <-chan struct{} { return p.changed }

func (p *pathPort) set(dst netip.Addr, mtu int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mtus[dst] = mtu
}

// asked returns the number of queries since the last call.
func (p *pathPort) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.queries
	p.queries = 0
	return n
}

// newPathRig returns a rig on a transport that knows its paths.
func newPathRig(t *testing.T, change func(*Config)) (*rig, *pathPort) {
	t.Helper()
	p := &pathPort{changed: make(chan struct{}, 1), mtus: map[netip.Addr]int{}, routes: map[netip.Addr]int{}}
	r := newRig(t, func(c *Config) {
		p.Transport = c.Transport
		c.Transport = p
		if change != nil {
			change(c)
		}
	})
	return r, p
}

// limit returns the limit of the paths from an address.
func (r *rig) limit(from netip.Addr) hca.PathLimit {
	r.Helper()
	for _, g := range have(r.dev.QueryPort(1))(r).GIDs {
		if g.GID == hca.GIDFromAddr(from) {
			return g.Path
		}
	}
	r.Fatalf("no GID %s", from)
	return hca.PathLimit{}
}

// The paths to the peers of address handles limit the port as long as there are handles, and for
// firstHold after that.
func TestPathsOfAddressHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := newPathRig(t, nil)
		defer r.close()
		p.set(rigPeer, 1400)
		time.Sleep(2 * pathEvery)
		synctest.Wait()
		if l := r.limit(testV4); l.To.IsValid() {
			t.Fatalf("limit %+v without an address handle, want none", l)
		}
		ah := r.ah(rigPeer)
		time.Sleep(2 * pathPause)
		synctest.Wait()
		if ev := r.event(); ev.Type != hca.EventPortActive {
			t.Errorf("event %v, want PORT_ACTIVE", ev)
		}
		want := hca.PathLimit{To: rigPeer, MTU: 1400, Carries: 1348, MaxPayload: 1348, Reported: true}
		if l := r.limit(testV4); l != want {
			t.Errorf("limit %+v, want %+v", l, want)
		}
		if l := r.limit(testV6); l.To.IsValid() {
			t.Errorf("limit of the other family %+v, want none", l)
		}
		p.set(rigPeer, 1390)
		p.changed <- struct{}{}
		time.Sleep(2 * pathPause)
		synctest.Wait()
		if l := r.limit(testV4); l.MTU != 1390 {
			t.Errorf("limit %+v soon after a report, want MTU 1390", l)
		}
		if err := ah.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(firstHold - 2*time.Second)
		synctest.Wait()
		if l := r.limit(testV4); l.MTU != 1390 {
			t.Errorf("limit %+v soon after the last address handle was closed, want it unchanged", l)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if l := r.limit(testV4); l.To.IsValid() {
			t.Errorf("limit %+v without address handles, want none", l)
		}
	})
}

// The paths to configured peers limit the port as soon as it is open. A look asks about a bounded
// number of them, and each is asked about in turn.
func TestPathsOfPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var peers []netip.Addr
		for i := range 4 * maxPathQueries {
			peers = append(peers, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		}
		r, p := newPathRig(t, func(c *Config) {
			c.Peers = func() []netip.Addr { return peers }
			first := c.Transport.(*pathPort)
			first.set(peers[0], 1450)
			first.set(peers[len(peers)-1], 1400)
		})
		defer r.close()
		if l := r.limit(testV4); l.MTU != 1450 {
			t.Errorf("limit %+v after opening, want MTU 1450", l)
		}
		if n := p.asked(); n > maxPathQueries {
			t.Errorf("%d queries, want at most %d", n, maxPathQueries)
		}
		time.Sleep(pathEvery / 2)
		synctest.Wait()
		for range 4 {
			time.Sleep(pathEvery)
			synctest.Wait()
			if n := p.asked(); n > maxPathQueries+maxNarrow {
				t.Errorf("%d queries in %v, want at most %d", n, pathEvery, maxPathQueries+maxNarrow)
			}
		}
		if l := r.limit(testV4); l.MTU != 1400 {
			t.Errorf("limit %+v after a round, want MTU 1400", l)
		}
	})
}

// Below the floor, the route decides how far a report is trusted.
func TestPathBelowTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := newPathRig(t, func(c *Config) {
			c.Peers = func() []netip.Addr { return []netip.Addr{rigPeer} }
			c.Transport.(*pathPort).set(rigPeer, 700)
		})
		defer r.close()
		if l := r.limit(testV4); l.Carries != 648 || l.MaxPayload != minTrusted {
			t.Errorf("limit %+v, want that of IPv6 on the interface", l)
		}
		p.mu.Lock()
		p.routes[rigPeer] = 1000
		p.mu.Unlock()
		time.Sleep(2 * pathEvery)
		synctest.Wait()
		if l := r.limit(testV4); l.Carries != 648 || l.MaxPayload != 948 {
			t.Errorf("limit %+v, want that of the route", l)
		}
	})
}

// A refuted report of a narrow path no longer limits the port, and does again once it may be true.
func TestRefutePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newPathRig(t, func(c *Config) {
			c.Peers = func() []netip.Addr { return []netip.Addr{rigPeer} }
			c.Transport.(*pathPort).set(rigPeer, 1400)
		})
		defer r.close()
		if l := r.limit(testV4); l.MTU != 1400 || !l.Reported {
			t.Errorf("limit %+v, want 1400, reported", l)
		}
		hca.RefutePath(r.dev, rigPeer, 1448)
		time.Sleep(pathPause)
		synctest.Wait()
		if l := r.limit(testV4); l.To.IsValid() {
			t.Errorf("refuted: limit %+v", l)
		}
		time.Sleep(refutedFor + pathEvery)
		synctest.Wait()
		if l := r.limit(testV4); l.MTU != 1400 {
			t.Errorf("limit %+v, want 1400 again", l)
		}
		if n := r.dev.count(pathsRefuted); n != 1 {
			t.Errorf("%d refutations are counted, want 1", n)
		}
	})
}
