package neigh

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// attachment holds the attributes of the QP.
type attachment struct {
	up        bool
	self      endpoint                   // kept when the QP is gone
	lid       hca.LID                    // of the port, without path bits; 0: RoCE
	lmc       uint8                      // number of path bits of the subnet's LIDs
	macs      [1 + maxRehashes]ipoib.MAC // that others may give to self
	broadcast hca.UDDest
	groups    map[hca.GID]hca.UDDest // snapshots share it: it is replaced, never changed
	qkey      hca.QKey
	mtu       int // in bytes of IP packet
	portMTU   int // the same, for echo requests

	former      endpoint // the previous self
	formerUntil time.Time
}

func (l *attachment) addr() ipoib.Addr { return l.self.addr() }

// key returns the key of this interface as a sender.
func (l *attachment) key() hca.UDSource {
	return hca.UDSource{GID: l.self.gid, LID: l.lid, QPN: l.self.qpn}.Key()
}

// dest returns the destination of messages for p, whose handle must be ready.
func (l *attachment) dest(p *peer) hca.UDDest {
	return hca.UDDest{AH: p.handle.ah, QPN: p.qpn, QKey: l.qkey}
}

// isOwn reports whether e is this interface, or was until recently: multicast
// sent by the former QP may still be looped back.
func (l *attachment) isOwn(e endpoint, now time.Time) bool {
	return e == l.self || e == l.former && now.Before(l.formerUntil)
}

// isOwnLID is isOwn for a sender of the subnet.
func (l *attachment) isOwnLID(from hca.UDSource, now time.Time) bool {
	return from.LID == l.lid && (from.QPN == l.self.qpn || from.QPN == l.former.qpn && now.Before(l.formerUntil))
}

// attach stores the QP's attributes and announces a new address.
func (t *Table) attach(ev Attached) {
	l := &t.host.link
	if self := endpointOf(ev.Self); self != l.self {
		l.former, l.formerUntil = l.self, t.step.now.Add(formerLife)
		l.self = self
		l.macs[0] = plainMAC(self.gid)
		for n := range uint32(maxRehashes) {
			l.macs[1+n] = rehashedMAC(self.gid, self.qpn, 1+n)
		}
		t.host.news.restart(t.step.now)
		clear(t.notices.last)
		if p := t.peers.live.byEndpoint[self]; p != nil {
			t.peers.remove(p)
		}
	}
	// In a fixed order, so that the same events cause the same actions.
	byMGID := func(a, b hca.GID) int { return bytes.Compare(a[:], b[:]) }
	for _, mgid := range slices.SortedFunc(maps.Keys(l.groups), byMGID) {
		if old := l.groups[mgid].AH; ev.Groups[mgid].AH != old {
			t.view.returnAH(old)
		}
	}
	t.setLID(ev.LID.Base(ev.LMC), ev.LMC)
	l.up, l.broadcast, l.groups = true, ev.Broadcast, maps.Clone(ev.Groups)
	l.mtu, l.portMTU = ev.MTU, max(ev.MTU, ev.PortMTU)
	if ev.QKey != l.qkey {
		l.qkey = ev.QKey
		for _, p := range t.peers.live.byEndpoint {
			if p.shown.route {
				t.view.show(p)
			}
		}
	}
	t.peers.askRestored()
	t.querier.attached()
	t.view.urgent()
	t.host.announceDue()
}

// setLID stores the LID of the port, which is 0 on RoCE. It announces a new one, since peers ask for the path to this
// host when they hear from another LID.
func (t *Table) setLID(lid hca.LID, lmc uint8) {
	l := &t.host.link
	was, lmcWas := l.lid, l.lmc
	l.lid, l.lmc = lid, lmc
	switch {
	case (lid == 0) != (was == 0) || lmc != lmcWas: // the paths are those of another fabric, or cannot be compared
		t.lids.forget()
		t.peers.displace()
	case lid != was:
		t.host.news.restart(t.step.now)
	}
	t.host.stations.regrouped = t.host.stations.regrouped || was == 0
}

// detach drops the frames that wait to be sent and returns the handles. The
// address is remembered: if the same one is attached again, there is nothing to
// announce, except the rest of an interrupted announcement.
func (t *Table) detach() {
	t.host.link.up, t.host.link.groups = false, nil
	for p := range t.peers.live.all() {
		t.step.dropKept(&p.kept, DropDetached)
		t.handles.void(p)
	}
	t.lids.detach()
	t.notices.detach()
	t.resolver.detach()
	t.seeker.detach()
	t.view.urgent()
}

// hostMAC sets ib0's own MAC. A peer with the same MAC gets a different one.
func (t *Table) hostMAC(m ipoib.MAC) {
	if m.IsZero() || m.IsMulticast() || m == t.host.stations.own.mac {
		return
	}
	t.host.stations.setOwn(m, t.step.now)
	if p := t.peers.live.byMAC[m]; p != nil {
		t.peers.live.setMAC(p, t.peers.freeMAC(p.endpoint, netip.Addr{}))
		t.view.show(p)
	}
	t.view.urgent()
}

// hostPort records the master of ib0. If that is another one, it forgets the stations behind ib0:
// announcing an address that has moved away would attract its traffic.
func (t *Table) hostPort(ev HostPort) {
	was := t.host.port
	t.host.port = &ev
	if was == nil || was.Up != ev.Up || was.Bridge != ev.Bridge {
		if was != nil {
			t.host.stations.clear()
		}
		t.querier.restart()
	}
	t.host.stations.setMaster(ev.Master, t.step.now)
	t.view.urgent()
}
