package soft

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// pathWatch keeps the limits of the port's paths current. Its destinations are the configured
// peers and of the address handles. It is used by one goroutine at a time.
type pathWatch struct {
	dev   *Device
	wire  transport.Paths
	known paths
	dests []netip.Addr // of the current round, sorted
	next  int          // in dests
}

const (
	// pathEvery is how often the kernel is asked while a path is narrow or there are more destinations than
	// a look asks about, unless there is a reason to ask earlier.
	pathEvery = time.Second
	// pathRest is the same otherwise.
	pathRest = 5 * time.Second
	// pathPause is the least time between two looks.
	pathPause = 100 * time.Millisecond
	// maxPathQueries bounds the destinations of a look besides those with a narrow path. A query
	// takes about 15 us, and with the most peers, 16,384, each is asked about once a minute.
	maxPathQueries = 256
)

// run looks until the device closes or the underlay is gone.
func (w *pathWatch) run(ctx context.Context) {
	timer := time.NewTimer(pathEvery)
	defer timer.Stop()
	for last := (time.Time{}); !w.dev.lost.Load(); last = time.Now() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.wire.PathChanged():
		case <-w.dev.newPath:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(last.Add(pathPause))):
		}
		w.look(time.Now())
		if len(w.known.narrow) == 0 && w.next >= len(w.dests) {
			timer.Reset(pathRest - time.Duration(time.Now().UnixNano())%pathRest) // with others that rest
		} else {
			timer.Reset(pathEvery)
		}
	}
}

// look asks about the narrow paths and the next others, and publishes what limits the port.
func (w *pathWatch) look(now time.Time) {
	d := w.dev
	d.mu.Lock()
	if w.next >= len(w.dests) {
		w.list()
	}
	port, refuted := d.slow.port, d.slow.refuted
	d.slow.refuted = nil
	d.mu.Unlock()
	for dst, payload := range refuted {
		w.known.refute(now, dst, payload+overhead(dst))
		d.lanes[0].counts.add(pathsRefuted, 1)
	}
	for _, dst := range slices.Collect(maps.Keys(w.known.narrow)) {
		if _, used := slices.BinarySearchFunc(w.dests, dst, netip.Addr.Compare); used {
			w.ask(now, &port, dst)
		} else {
			w.known.saw(now, dst, 0, 0, port.mtu)
		}
	}
	end := min(len(w.dests), w.next+maxPathQueries)
	for _, dst := range w.dests[w.next:end] {
		if w.known.narrow[dst] == nil {
			w.ask(now, &port, dst)
		}
	}
	w.next = end
	d.limitPaths(now, &w.known)
}

// list begins a round. d.mu is held.
func (w *pathWatch) list() {
	w.dests, w.next = w.dests[:0], 0
	for dst := range w.dev.slow.dests {
		w.dests = append(w.dests, dst)
	}
	if peers := w.dev.cfg.Peers; peers != nil {
		w.dests = append(w.dests, peers()...)
	}
	slices.SortFunc(w.dests, netip.Addr.Compare)
	w.dests = slices.Compact(w.dests)
}

// ask asks about a destination. The route, a query of 0.2 ms, matters only for the narrow paths that
// are remembered.
func (w *pathWatch) ask(now time.Time, port *port, dst netip.Addr) {
	mtu, err := w.wire.PathMTU(dst)
	if err != nil {
		mtu = 0
	}
	route := port.mtu
	if mtu > 0 && mtu < port.mtu && (w.known.narrow[dst] != nil || len(w.known.narrow) < maxNarrow) {
		if r, err := w.wire.RouteMTU(dst); err == nil {
			route = r
		}
	}
	w.known.saw(now, dst, mtu, route, port.mtu)
}

// limitPaths publishes what the known paths carry.
func (d *Device) limitPaths(now time.Time, known *paths) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &d.slow.port
	v4, v6 := known.limit(now, p, netip.IPv4Unspecified()), known.limit(now, p, netip.IPv6Unspecified())
	if p.limit4 == v4 && p.limit6 == v6 {
		return
	}
	p.limit4, p.limit6 = v4, v6
	if p.up {
		d.emit(hca.EventPortActive, hca.ObjectID{Kind: hca.KindPort, Num: 1})
	}
}

// RefutePath implements [hca.PathRefuter].
func (d *Device) RefutePath(to netip.Addr, payload int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.slow.refuted) < maxNarrow {
		if d.slow.refuted == nil {
			d.slow.refuted = map[netip.Addr]int{}
		}
		d.slow.refuted[to] = max(payload, d.slow.refuted[to])
	}
	notify(d.newPath)
}

// use counts the address handles of a destination. A new destination has its path examined soon. mu
// is held.
func (d *Device) use(dst netip.Addr, more int) {
	if dst.IsMulticast() {
		return
	}
	if d.slow.dests == nil {
		d.slow.dests = map[netip.Addr]int{}
	}
	n := d.slow.dests[dst] + more
	if n == 0 {
		delete(d.slow.dests, dst)
		return
	}
	d.slow.dests[dst] = n
	if n == 1 && more > 0 {
		notify(d.newPath)
	}
}
