package iface

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/qprecovery/freeze"
	"ipoibd/ud/ipoib"
)

// fast is the shell of the queue pair's fast path. It hands over the peers that the lanes know, and reports their traffic to
// the peer table. It holds the fast path while the daemon must see all frames. Run owns it; any goroutine may call setHold,
// posted, count and lacking.
type fast struct {
	log    *slog.Logger
	path   atomic.Pointer[hca.FastPath] // in use, or used last; nil: none yet
	peers  map[ipoib.MAC]hca.FastPathCounts
	due    map[ipoib.MAC]duePeer
	former *neigh.Snapshot // published last; its destinations are in peers or due, or were refused
	read   time.Time       // when the counts of the peers were last read
	total  uint64          // frames carried by then
	moved  time.Time       // when that had changed last

	mu     sync.Mutex    // guards what follows
	holds  holdReason    // a set
	before report.Totals // of those before path
	why    error         // the device did not create the one that is wanted
}

// duePeer is a peer to hand over once no frame can be on its way that the lanes routed by an earlier snapshot.
type duePeer struct {
	to    hca.UDDest
	epoch uint64
}

// holdReason is a reason to hold the fast path.
type holdReason uint8

// Reasons to hold the fast path.
const (
	holdCapture  holdReason = 1 << iota // a capture must show all frames
	holdStations                        // the fast path knows only the host, no stations behind ib0
	holdAway                            // ib0 is in another network namespace now
	holdSources                         // the sources of frames must be checked
	holdWatched                         // a program watches ib0, and would not see what the host sends
)

// carriedEvery is the least time between two readings of the peers' counters: shorter than the table's markInterval
// (250 ms), so that a busy peer does not look silent (silenceLimit, 1 s).
const carriedEvery = 200 * time.Millisecond

// use begins to use the fast path of a queue pair. The one before is closed. It returns the events of its last traffic.
func (f *fast) use(r endpoint.FastPath) (out []neigh.Event) {
	f.failed(r.Err)
	was := f.path.Load()
	if r.Path == nil || was != nil && *was == r.Path {
		return nil
	}
	for mac := range f.peers {
		if c, ok := (*was).PeerCounts(mac); ok {
			out = f.carried(mac, c, out)
		}
	}
	f.mu.Lock()
	f.before = report.TotalsOf(f.counted())
	f.path.Store(&r.Path)
	if f.holds != 0 {
		r.Path.Hold()
	}
	f.mu.Unlock()
	f.peers, f.due, f.total = map[ipoib.MAC]hca.FastPathCounts{}, map[ipoib.MAC]duePeer{}, 0
	former := f.former
	f.former = new(neigh.Snapshot)
	if former != nil {
		f.publish(former, nil)
	}
	return out
}

// failed notes why there is no fast path.
func (f *fast) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && (f.why == nil || f.why.Error() != err.Error()) {
		f.log.Info("the queue pair has no fast path; the daemon carries all frames", "reason", err)
	}
	f.why = err
}

// publish follows a snapshot that the lanes are about to get. It returns the events of peers that are gone, after those of out.
func (f *fast) publish(s *neigh.Snapshot, out []neigh.Event) []neigh.Event {
	f.setHold(holdStations, !s.Alone())
	path := f.path.Load()
	if path == nil {
		f.former = s
		return out
	}
	s.Destinations(f.former, func(mac ipoib.MAC, to hca.UDDest, ok bool) {
		_, has := f.peers[mac]
		if has && ok && (*path).Renew(mac, to) {
			return
		}
		if has {
			last, err := (*path).RemovePeer(mac)
			if err != nil {
				f.log.Error("cannot remove a peer from the fast path", "mac", mac.String(), "err", err)
			}
			out = f.carried(mac, last, out)
			delete(f.peers, mac)
		}
		if delete(f.due, mac); ok {
			f.due[mac] = duePeer{to, s.Epoch()}
		}
	})
	f.former = s
	return out
}

// mostAtOnce bounds the peers of one handOver: each takes about 50 us, during which Run does nothing else.
const mostAtOnce = 64

// handOver hands over the peers that are due. A lane may still be routing a frame by the snapshot safe, or by a later one.
func (f *fast) handOver(safe uint64) {
	n := 0
	for mac, p := range f.due {
		if p.epoch > safe {
			continue
		}
		if n++; n > mostAtOnce {
			return
		}
		delete(f.due, mac)
		if err := (*f.path.Load()).AddPeer(mac, p.to); err != nil {
			f.log.Debug("cannot add a peer to the fast path; the daemon carries its frames", "mac", mac.String(), "err", err)
			continue
		}
		f.peers[mac] = hca.FastPathCounts{}
	}
}

// traffic returns the events of the traffic of all peers, if they were not read lately.
func (f *fast) traffic(now time.Time) (out []neigh.Event) {
	path := f.path.Load()
	if path == nil || now.Sub(f.read) < carriedEvery {
		return nil
	}
	f.read = now
	total := uint64(0)
	for mac := range f.peers {
		if c, ok := (*path).PeerCounts(mac); ok {
			total += c.TxPackets + c.RxPackets
			out = f.carried(mac, c, out)
		}
	}
	if total != f.total {
		f.total, f.moved = total, now
	}
	return out
}

// carried appends the event of the traffic of a peer since the last one, if there is any.
func (f *fast) carried(mac ipoib.MAC, c hca.FastPathCounts, out []neigh.Event) []neigh.Event {
	was := f.peers[mac]
	f.peers[mac] = c
	ev := neigh.Carried{MAC: mac, Sent: c.TxBytes - was.TxBytes, Heard: c.RxBytes - was.RxBytes}
	if ev.Sent+ev.Heard == 0 {
		return out
	}
	return append(out, ev)
}

// resting reports whether the fast path has carried nothing for a while.
func (f *fast) resting(now time.Time) bool { return now.Sub(f.moved) > restAfter }

// restAfter is longer than the interval at which a lane at rest is sampled, because Run looks at the fast path only then.
const restAfter = freeze.Rest + time.Second

// setHold sets or clears a reason to hold the fast path.
func (f *fast) setHold(why holdReason, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.holds != 0
	if f.holds &^= why; on {
		f.holds |= why
	}
	path := f.path.Load()
	switch is := f.holds != 0; {
	case path == nil || is == was:
	case is:
		(*path).Hold()
	default:
		(*path).Release()
	}
}

// posted reports that the reader of a queue of the TAP found it empty.
func (f *fast) posted(queue int) {
	if path := f.path.Load(); path != nil {
		(*path).Posted(queue)
	}
}

// count sets the counters of the fast paths in c.
func (f *fast) count(c report.Counters) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(c, f.counted())
}

// counted returns the counters of all fast paths. mu is held.
func (f *fast) counted() report.Counters {
	c := report.Counters{}
	if path := f.path.Load(); path != nil {
		c.Add("fast_", (*path).Counters())
	}
	c.AddTotals(f.before)
	return c
}

// lacking returns why there is no fast path although one is wanted, or why the host does not let it carry anything, or "".
func (f *fast) lacking() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	why := f.why
	if path := f.path.Load(); why == nil && path != nil {
		why = (*path).Refused()
	}
	if why == nil {
		return ""
	}
	return why.Error()
}
