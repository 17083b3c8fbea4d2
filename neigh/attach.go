package neigh

import (
	"net/netip"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// attachment is what the QP stands for.
type attachment struct {
	up        bool
	self      endpoint // outlives the QP
	broadcast hca.UDDest
	qkey      hca.QKey
	mtu       int // bytes of IP

	former      endpoint // what self was before
	formerUntil time.Time
}

func (l *attachment) addr() ipoib.Addr { return l.self.addr() }

// isOwn reports whether e is this interface, or was it just now: multicast of
// the former QP may still come back.
func (l *attachment) isOwn(e endpoint, now time.Time) bool {
	return e == l.self || e == l.former && now.Before(l.formerUntil)
}

// become takes a new address.
func (l *attachment) become(self endpoint, now time.Time) {
	l.former, l.formerUntil = l.self, now.Add(formerLife)
	l.self = self
}

// attach takes the QP's attributes; a new address is announced.
func (t *Table) attach(ev Attached) {
	if self := endpointOf(ev.Self); self != t.link.self {
		t.link.become(self, t.now)
		t.news.begin(t.now)
		clear(t.notices.last)
		if p := t.peers.byEndpoint[self]; p != nil {
			t.forget(p)
		}
	}
	t.link.up = true
	t.link.broadcast, t.link.qkey, t.link.mtu = ev.Broadcast, ev.QKey, ev.MTU
	t.pub.urgent()
	t.announceDue()
}

// detach drops what waits for sending and gives the handles back. The address is
// remembered: attached under the same one again, nothing has to be announced,
// but for an announcement that was cut short.
func (t *Table) detach() {
	t.link.up = false
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			t.dropKept(&p.kept, DropDetached)
			t.voidHandle(p)
		})
	}
	t.dropNotices()
	for _, r := range t.resolver.byIP {
		t.giveUp(r, DropDetached)
	}
	t.pub.urgent()
}

// hostAddrs takes the host's addresses; new ones are announced.
func (t *Table) hostAddrs(ev HostAddrs) {
	t.hosts.router = t.hosts.router || ev.Router
	if t.hosts.set(ev.Addrs) {
		t.news.begin(t.now)
		t.announceDue()
	}
}

// hostMAC takes ib0's own MAC. A peer that has the same one gets another.
func (t *Table) hostMAC(m ipoib.MAC) {
	if m.IsZero() || m.IsMulticast() || t.mac.own.is(m) {
		return
	}
	t.mac.setOwn(m, t.now)
	if p := t.peers.byMAC[m]; p != nil {
		t.peers.setMAC(p, t.freeMAC(p.endpoint, netip.Addr{}))
	}
	t.pub.urgent()
}

// hostPortChanged forgets who is behind ib0. Their addresses go as well: to
// announce an address that has moved away would call its traffic back.
func (t *Table) hostPortChanged(alone bool) {
	t.mac.alone = alone
	t.hosts.forgetLearnt()
	if t.mac.forget() {
		t.pub.urgent()
	}
}
