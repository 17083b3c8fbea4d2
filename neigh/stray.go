package neigh

import (
	"maps"
	"net/netip"
	"time"

	"ipoibd/hca"
)

// notices are announcements to senders of stray datagrams alone. A notice does not
// make its receiver a peer: the claims of that sender are unknown and may be
// forged. So a notice that finds no peer has a handle of its own, which it gives
// back at once.
type notices struct {
	rate  rate
	byGID map[hca.GID]int     // notices in the second of rate, at most maxNoticeRate
	last  map[endpoint]notice // by receiver; at most maxNoticed
	asked map[uint64]endpoint // requests for handles
}

// notice is when a sender got its last notice, and the pause until it may get the
// next one.
type notice struct {
	at    time.Time
	pause time.Duration
}

// over reports whether the pauses of a sender start over.
func (n notice) over(now time.Time) bool { return now.Sub(n.at) > 2*maxNoticePause }

func (n *notices) init() {
	n.byGID = make(map[hca.GID]int)
	n.last = make(map[endpoint]notice)
	n.asked = make(map[uint64]endpoint)
}

// pausing reports whether e got a notice a short while ago.
func (n *notices) pausing(e endpoint, now time.Time) bool {
	last := n.last[e]
	return now.Before(last.at.Add(last.pause))
}

// admit reports whether the rates allow a notice to e, and notes it. maxNoticed is
// large enough that there is room for e once old notices are forgotten.
func (n *notices) admit(e endpoint, now time.Time) bool {
	if n.byGID[e.gid] >= maxNoticeRatePerGID && now.Before(n.rate.end) || !n.rate.take(now, maxNoticeRate) {
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
// peer: after a restart there are none. Every Stray ends in one counter.
func (t *Table) stray(ev Stray) {
	e := endpoint{ev.GID, ev.QPN}
	switch {
	case !t.link.up || !e.valid() || t.link.isOwn(e, t.now) || len(t.hosts.given)+len(t.hosts.learnt) == 0:
		t.stats.StraysUnanswerable++
		return
	case t.notices.pausing(e, t.now):
		t.stats.StraysPaused++
		return
	case len(t.notices.asked)+len(t.handles.asked) >= maxAnswerAHs || !t.notices.admit(e, t.now):
		t.stats.StraysLimited++
		return
	}
	if p := t.peers.byEndpoint[e]; p != nil && p.handle.state == handleReady {
		t.notify(e, t.dest(p))
		return
	}
	t.notices.asked[t.requestAH(e.gid)] = e
}

// notify announces the host's addresses to a sender alone: one address at first,
// by which a sender that knows it reaches all of them, and the others if the sender
// goes on. So a datagram with a forged sender is answered by a single message.
func (t *Table) notify(e endpoint, to hca.UDDest) {
	t.stats.Notices++
	sent, most := 0, maxNoticeIPs
	if t.notices.last[e].pause == noticePause {
		most = 1
	}
	t.hosts.all(func(ip netip.Addr) {
		if sent < most {
			sent++
			t.emit(SendFabric{to, t.announcement(ip)})
		}
	})
}

// noticeReady sends the notice that a handle was asked for, and gives the handle
// back; false if the handle is not for a notice.
func (t *Table) noticeReady(ev AHReady) bool {
	e, ok := t.notices.asked[ev.ID]
	if !ok {
		return false
	}
	delete(t.notices.asked, ev.ID)
	t.notify(e, hca.UDDest{AH: ev.AH, QPN: e.qpn, QKey: t.link.qkey})
	t.returnAH(ev.AH)
	return true
}

// noticeFailed gives up a notice whose handle could not be made; false if the
// handle is not for a notice.
func (t *Table) noticeFailed(id uint64) bool {
	if _, ok := t.notices.asked[id]; !ok {
		return false
	}
	delete(t.notices.asked, id)
	t.stats.AHFailed++
	t.stats.StraysUnanswerable++
	return true
}

// dropNotices gives up the notices that wait for handles.
func (t *Table) dropNotices() {
	t.stats.StraysUnanswerable += uint64(len(t.notices.asked))
	clear(t.notices.asked)
}
