package neigh

import (
	"maps"
	"net/netip"
	"time"

	"ipoibd/hca"
)

// notices are announcements to individual senders of stray datagrams. A notice does
// not make its receiver a peer, because the sender has claimed no address and may be
// forged. So a notice to a sender without a ready handle uses its own handle and
// returns it at once.
type notices struct {
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

func (n *notices) init() {
	n.byGID = make(map[hca.GID]int)
	n.last = make(map[endpoint]notice)
	n.asked = make(map[uint64]endpoint)
}

// pausing reports whether the pause after the last notice to e is not over yet.
func (n *notices) pausing(e endpoint, now time.Time) bool {
	last := n.last[e]
	return now.Before(last.at.Add(last.pause))
}

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

// stray announces the host to a sender of stray datagrams. The sender need not be a
// peer: after a restart the table has none. Every Stray ends in one counter.
func (t *Table) stray(ev Stray) {
	e := endpoint{ev.GID, ev.QPN}
	switch {
	case !t.host.link.up || !e.valid() || t.host.link.isOwn(e, t.step.now) || len(t.host.ips.given)+len(t.host.ips.learnt) == 0:
		t.step.stats.StraysUnanswerable++
		return
	case t.notices.pausing(e, t.step.now):
		t.step.stats.StraysPaused++
		return
	case len(t.notices.asked)+len(t.handles.asked) >= maxAnswerAHs || !t.notices.admit(e, t.step.now):
		t.step.stats.StraysLimited++
		return
	}
	if p := t.peers.live.byEndpoint[e]; p != nil && p.handle.state == handleReady {
		t.notify(e, t.host.link.dest(p))
		return
	}
	t.notices.asked[t.handles.request(e.gid)] = e
}

// notify announces the host's addresses to a single sender. The first notice has one
// address: a sender that knows it learns the new QPN, which serves for all addresses. The
// next notice has the others as well. So one message answers a datagram with a forged
// sender.
func (t *Table) notify(e endpoint, to hca.UDDest) {
	t.step.stats.Notices++
	sent, most := 0, maxNoticeIPs
	if t.notices.last[e].pause == noticePause {
		most = 1
	}
	t.host.ips.all(func(ip netip.Addr) {
		if sent < most {
			sent++
			t.step.emit(SendFabric{to, t.host.announcement(ip)})
		}
	})
}

// ahReady sends the notice for which a handle was requested, or passes a new handle to its peer.
func (t *Table) ahReady(ev AHReady) {
	e, ok := t.notices.asked[ev.ID]
	if !ok {
		t.handles.created(ev)
		return
	}
	delete(t.notices.asked, ev.ID)
	t.notify(e, hca.UDDest{AH: ev.AH, QPN: e.qpn, QKey: t.host.link.qkey})
	t.view.returnAH(ev.AH)
}

// ahFailed gives up a notice, or the handle of a peer.
func (t *Table) ahFailed(ev AHFailed) {
	if _, ok := t.notices.asked[ev.ID]; !ok {
		t.handles.failed(ev)
		return
	}
	delete(t.notices.asked, ev.ID)
	t.step.stats.AHFailed++
	t.step.stats.StraysUnanswerable++
}
