package neigh

import (
	"errors"
	"time"

	"ipoibd/hca"
)

// handleState is the state of a peer's address handle.
//
//	from    | to      | cause                          | action
//	none    | asked   | a message for the peer         | CreateAH
//	asked   | ready   | AHReady                        | send the kept messages
//	asked   | waiting | AHFailed, tries left           | retry after ahBackoff, doubled each time
//	asked   | refused | AHFailed, final or last try    | drop the kept messages
//	waiting | asked   | the pause is over              | CreateAH
//	refused | none    | ahHoldoff is over              |
//	ready   | ready   | the peer is silent             | CreateAH, for a renewal
//	ready   | ready   | AHReady, of the renewal        | use the new handle, DestroyAH of the old one
//	ready   | ready   | AHFailed, of the renewal       |
//	any     | none    | Detached, or the peer goes     | DestroyAH if it was ready; drop the kept messages
//
// none, asked and waiting keep messages, ready sends them, refused drops them.
//
// A handle is renewed because some drivers (mlx5) resolve the MAC of the next hop when they create it, and
// never again: if the MAC of a peer or a router changes, packets no longer reach it.
type handleState uint8

const (
	handleNone handleState = iota
	handleAsked
	handleReady
	handleWaiting
	handleRefused
	numHandleState
)

var handleStateNames = [numHandleState]string{"none", "asked", "ready", "waiting", "refused"}

func (s handleState) String() string { return handleStateNames[s] }

// handle is the address handle of a peer.
type handle struct {
	state handleState
	id    uint64    // of the request, while asked
	ah    hca.AH    // while ready
	fresh uint64    // of the request for its renewal, while ready; 0: none
	asked time.Time // when ah, or its renewal, was last requested
	tries int       // requests since handleNone
	alarm alarm[*peer]
}

// handles are the outstanding requests and the pauses of all peers.
type handles struct {
	lastID uint64
	asked  map[uint64]*peer
	pauses alarms[*peer]
	ready  int
	fresh  int // outstanding renewals, which are in asked as well
}

// outgoing is a message from the host to a peer.
type outgoing struct {
	msg     []byte // fresh
	control bool   // ARP, RARP or ND, which does not make the peer a used one
	late    bool   // it was kept before
}

// sendPeer sends a message to p, now or when its handle is ready.
func (t *roster) sendPeer(p *peer, o outgoing) {
	if !o.control {
		t.promote(p)
	}
	switch p.handle.state {
	case handleReady:
		if !o.control {
			t.view.needed()
		}
		t.step.emit(SendFabric{t.host.link.dest(p), o.msg})
		t.step.sent(o.late)
	case handleRefused:
		t.step.drop(DropAHFailed)
	case handleNone:
		if !p.used && len(t.handles.asked) >= maxAnswerAHs {
			t.step.drop(DropAHLimit)
			return
		}
		t.kept.keep(&p.kept, o.msg)
		t.becomeAsked(p)
	default:
		t.kept.keep(&p.kept, o.msg)
	}
}

func (t *roster) becomeAsked(p *peer) {
	p.handle.state, p.handle.id = handleAsked, t.requestAH(p.gid)
	p.handle.tries++
	p.handle.asked = t.step.now
	t.handles.asked[p.handle.id] = p
}

// requestAH requests a handle and returns the ID of the request.
func (t *roster) requestAH(gid hca.GID) uint64 {
	t.handles.lastID++
	t.step.emit(CreateAH{t.handles.lastID, gid})
	return t.handles.lastID
}

func (t *roster) becomeReady(p *peer, ah hca.AH) {
	p.handle = handle{state: handleReady, ah: ah, asked: p.handle.asked}
	t.handles.ready++
	t.view.show(p)
	if p.silence.alarm.pos > 0 { // the alarm was armed before anything could be sent
		t.stopAlarm(p)
		t.dataSent(p)
	}
	for _, msg := range t.kept.drain(&p.kept) {
		t.step.emit(SendFabric{t.host.link.dest(p), msg})
		t.step.sent(true)
	}
	if p.used {
		t.view.change()
	} else {
		t.view.changeLate()
	}
}

// renew requests another handle in place of the one of p, which serves until then, unless that is
// recent or there are too many such requests.
func (t *roster) renew(p *peer) {
	if p.handle.fresh != 0 || t.handles.fresh >= maxRenewals || t.step.now.Sub(p.handle.asked) < renewPause {
		return
	}
	p.handle.fresh, p.handle.asked = t.requestAH(p.gid), t.step.now
	t.handles.asked[p.handle.fresh] = p
	t.handles.fresh++
}

// renewed ends the renewal of p's handle, with the new one.
func (t *roster) renewed(p *peer, ah hca.AH) {
	t.endRenewal(p)
	t.view.returnAH(p.handle.ah)
	p.handle.ah = ah
	t.view.show(p)
	t.view.change()
}

// endRenewal ends the renewal of p's handle, if there is one.
func (t *roster) endRenewal(p *peer) {
	if p.handle.fresh != 0 {
		delete(t.handles.asked, p.handle.fresh)
		p.handle.fresh = 0
		t.handles.fresh--
	}
}

func (t *roster) becomeWaiting(p *peer) {
	p.handle.state = handleWaiting
	t.pause(p, ahBackoff<<(p.handle.tries-1))
}

func (t *roster) becomeRefused(p *peer) {
	p.handle.state = handleRefused
	t.kept.drop(&p.kept, DropAHFailed)
	t.pause(p, ahHoldoff)
}

func (t *roster) pause(p *peer, d time.Duration) {
	t.handles.pauses.set(&p.handle.alarm, p, t.step.now.Add(d))
}

// pauseOver is called when the pause of p has ended.
func (t *roster) pauseOver(p *peer) {
	if p.handle.state == handleWaiting {
		t.becomeAsked(p)
		return
	}
	p.handle = handle{}
}

// voidHandle resets the handle of p from any state and stops watching p for silence.
func (t *roster) voidHandle(p *peer) {
	switch p.handle.state {
	case handleReady:
		t.handles.ready--
		t.endRenewal(p)
		t.view.returnAH(p.handle.ah)
	case handleAsked:
		delete(t.handles.asked, p.handle.id)
	default:
		t.handles.pauses.stop(&p.handle.alarm)
	}
	p.handle = handle{}
	if p.shown.route {
		t.view.show(p)
	}
	t.resetSilence(p)
}

// ahReady stores a new handle of a peer, or sends the notice for which it was requested. It
// returns a handle that is no longer needed.
func (t *Table) ahReady(ev AHReady) {
	if e, ok := t.notices.asked[ev.ID]; ok {
		delete(t.notices.asked, ev.ID)
		t.notify(e, hca.UDDest{AH: ev.AH, QPN: e.qpn, QKey: t.host.link.qkey})
		t.view.returnAH(ev.AH)
		return
	}
	p, ok := t.handles.asked[ev.ID]
	switch {
	case !ok:
		t.step.emit(DestroyAH{AH: ev.AH})
	case p.handle.state == handleReady:
		t.renewed(p, ev.AH)
	default:
		delete(t.handles.asked, ev.ID)
		t.becomeReady(p, ev.AH)
	}
}

// ahFailed retries to get a handle of a peer, or gives up. It gives up a notice.
func (t *Table) ahFailed(ev AHFailed) {
	if _, ok := t.notices.asked[ev.ID]; ok {
		delete(t.notices.asked, ev.ID)
		t.step.stats.AHFailed++
		t.step.stats.StraysUnanswerable++
		return
	}
	p, ok := t.handles.asked[ev.ID]
	if !ok {
		return
	}
	t.step.stats.AHFailed++
	if p.handle.state == handleReady {
		t.endRenewal(p)
		return
	}
	delete(t.handles.asked, ev.ID)
	final := errors.Is(ev.Err, hca.ErrInvalid) || errors.Is(ev.Err, hca.ErrRange)
	if final || p.handle.tries >= ahTries {
		t.becomeRefused(p)
		return
	}
	t.becomeWaiting(p)
}
