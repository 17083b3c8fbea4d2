package neigh

import (
	"maps"
	"time"

	"ipoibd/hca"
)

// notices are announcements to individual senders of stray datagrams. A notice does
// not make its receiver a peer, because the sender has claimed no address and may be
// forged. So a notice to a sender without a ready handle uses its own handle and
// returns it at once.
type notices struct {
	step    *step
	host    *host
	view    *view
	handles *handles

	rate  rate
	byGID map[hca.GID]int     // notices in the second of rate, at most maxNoticeRate
	last  map[endpoint]notice // by receiver; at most maxNoticed
	asked map[uint64]endpoint // requests for handles
}

// notice is the time of the last notice to a sender, and the pause before the
// next one.
type notice struct {
	at    time.Time
	pause time.Duration
}

// over reports whether the last notice is old enough for the pauses to start
// over.
func (n notice) over(now time.Time) bool { return now.Sub(n.at) > 2*maxNoticePause }

// admit reports whether the rate limits allow a notice to e, and notes it if so.
// maxNoticed is large enough that there is room for e once old notices are
// removed.
func (n *notices) admit(e endpoint, now time.Time) bool {
	if n.byGID[e.gid] >= maxNoticeRatePerGID && now.Before(n.rate.end) || !n.rate.allow(now, maxNoticeRate) {
		return false
	}
	if n.rate.done == 1 { // a new second
		clear(n.byGID)
	}
	n.byGID[e.gid]++
	if len(n.last) >= maxNoticed {
		maps.DeleteFunc(n.last, func(_ endpoint, last notice) bool { return last.over(now) })
	}
	last := n.last[e]
	if last.over(now) {
		last.pause = 0
	}
	n.last[e] = notice{at: now, pause: min(max(2*last.pause, noticePause), maxNoticePause)}
	return true
}

// answer announces the host to a sender of stray datagrams. The sender need not be a
// peer: after a restart the table has none. p is the peer at e, or nil. Every Stray ends in one counter.
func (n *notices) answer(e endpoint, p *peer) {
	now := n.step.now
	switch {
	case !n.host.link.up || !e.valid() || n.host.link.isOwn(e, now) || len(n.host.stations.byIP) == 0:
		n.step.stats.StraysUnanswerable++
	case n.host.link.lid != 0 && (p == nil || p.handle.state != handleReady):
		n.step.stats.StraysUnanswerable++ // InfiniBand devices report no strays; without a peer there is no path
	case now.Before(n.last[e].at.Add(n.last[e].pause)):
		n.step.stats.StraysPaused++
	case len(n.asked)+len(n.handles.asked) >= maxAnswerAHs || !n.admit(e, now):
		n.step.stats.StraysLimited++
	case p != nil && p.handle.state == handleReady:
		n.send(e, p.handle.ah)
	default:
		n.asked[n.handles.request(e.gid, hca.UDPath{})] = e
	}
}

// send announces the host's addresses to a single sender. The first notice has one
// address: a sender that knows it learns the new QPN, which serves for all addresses. The
// next notice has the others as well. So one message answers a datagram with a forged
// sender.
func (n *notices) send(e endpoint, ah hca.AH) {
	n.step.stats.Notices++
	to := hca.UDDest{AH: ah, QPN: e.qpn, QKey: n.host.link.qkey}
	most := maxNoticeIPs
	if n.last[e].pause == noticePause {
		most = 1
	}
	for ip := range n.host.stations.all() {
		if most--; most < 0 {
			break
		}
		n.step.emit(SendFabric{to, n.host.announcement(ip)})
	}
}

// created sends the notice for which a handle was requested, and reports whether there is one.
func (n *notices) created(ev AHReady) bool {
	e, ok := n.asked[ev.ID]
	if ok {
		delete(n.asked, ev.ID)
		n.send(e, ev.AH)
		n.view.returnAH(ev.AH)
	}
	return ok
}

// failed gives up the notice for which a handle was requested, and reports whether there is one.
func (n *notices) failed(ev AHFailed) bool {
	_, ok := n.asked[ev.ID]
	if ok {
		delete(n.asked, ev.ID)
		n.step.stats.AHFailed++
		n.step.stats.StraysUnanswerable++
	}
	return ok
}

// detach gives up the notices that wait for a handle.
func (n *notices) detach() {
	n.step.stats.StraysUnanswerable += uint64(len(n.asked))
	clear(n.asked)
}
