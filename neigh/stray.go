package neigh

import (
	"net/netip"
	"time"

	"ipoibd/hca"
)

// notices are what is told to senders of stray datagrams. Such a sender does not
// become a peer by that: what it claims is not known, and it may be forged. So a
// notice that finds no peer has a handle of its own, which goes back at once.
type notices struct {
	rate  rate
	told  map[endpoint]told   // at most maxTold
	asked map[uint64]endpoint // requests for handles
}

// told is when a sender was told last, and how long it is left alone from then on.
type told struct {
	at    time.Time
	pause time.Duration
}

func (n *notices) init() {
	n.told = make(map[endpoint]told)
	n.asked = make(map[uint64]endpoint)
}

// admit reports whether e is to be told now, and notes that it is.
func (n *notices) admit(e endpoint, now time.Time) bool {
	last := n.told[e]
	if now.Before(last.at.Add(last.pause)) || !n.rate.left(now, maxNoticeRate) || !n.room(e, now) {
		return false
	}
	if now.Sub(last.at) > 2*maxNoticePause {
		last.pause = 0
	}
	n.rate.take(now, maxNoticeRate)
	n.told[e] = told{at: now, pause: min(max(2*last.pause, noticePause), maxNoticePause)}
	return true
}

// room reports whether e can be noted. Where there are too many, those are
// forgotten whose pauses would start over anyway.
func (n *notices) room(e endpoint, now time.Time) bool {
	if _, known := n.told[e]; known || len(n.told) < maxTold {
		return true
	}
	for other, last := range n.told {
		if now.Sub(last.at) > 2*maxNoticePause {
			delete(n.told, other)
		}
	}
	return len(n.told) < maxTold
}

// stray tells a sender of stray datagrams where the host is now. The sender may be
// unknown: after a restart every one is.
func (t *Table) stray(ev Stray) {
	e := endpoint{ev.GID, ev.QPN}
	switch {
	case !t.link.up || !e.valid() || t.link.isOwn(e, t.now):
		return
	case len(t.hosts.given)+len(t.hosts.learnt) == 0 || len(t.notices.asked) >= maxAnswerAHs:
		return
	case !t.notices.admit(e, t.now):
		return
	}
	if p := t.peers.byEndpoint[e]; p != nil && p.handle.state == handleReady {
		t.notify(t.dest(p))
		return
	}
	t.notices.asked[t.requestAH(e.gid)] = e
}

// notify announces the host's addresses to one destination.
func (t *Table) notify(to hca.UDDest) {
	t.stats.Strays++
	sent := 0
	t.hosts.all(func(ip netip.Addr) {
		if sent < maxNoticeIPs {
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
	t.notify(hca.UDDest{AH: ev.AH, QPN: e.qpn, QKey: t.link.qkey})
	t.returnAH(ev.AH)
	return true
}
