package neigh

import (
	"net/netip"
	"time"
)

// notice is what a peer that sends to a QPN of ours that is gone was told.
type notice struct {
	pending bool // it is told as soon as its handle is ready
	at      time.Time
	pause   time.Duration // from at on; 0: it was never told
}

// stray tells a sender of stray datagrams where the host is now. The sender may be
// unknown: after a restart every one is.
func (t *Table) stray(ev Stray) {
	e := endpoint{ev.GID, ev.QPN}
	if !t.link.up || !e.valid() || t.link.isOwn(e, t.now) || len(t.hosts.given)+len(t.hosts.learnt) == 0 {
		return
	}
	p := t.peers.byEndpoint[e]
	if p != nil && (p.notice.pending || t.now.Before(p.notice.at.Add(p.notice.pause))) {
		return
	}
	if !t.notices.take(t.now, maxNoticeRate) {
		return
	}
	if p == nil {
		p = t.meet(e)
	}
	switch p.handle.state {
	case handleReady:
		t.notify(p)
	case handleNone:
		if len(t.handles.asked) < maxAnswerAHs {
			p.notice.pending = true
			t.becomeAsked(p)
		}
	case handleAsked, handleWaiting:
		p.notice.pending = true
	}
}

// notify announces the host's addresses to p alone.
func (t *Table) notify(p *peer) {
	if t.now.Sub(p.notice.at) > 2*maxNoticePause {
		p.notice.pause = 0
	}
	pause := min(max(2*p.notice.pause, noticePause), maxNoticePause)
	p.notice = notice{at: t.now, pause: pause}
	t.stats.Strays++
	sent := 0
	t.hosts.all(func(ip netip.Addr) {
		if sent < maxNoticeIPs {
			sent++
			t.emit(SendFabric{t.dest(p), t.announcement(ip)})
		}
	})
}
