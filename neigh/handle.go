package neigh

import (
	"errors"
	"time"

	"ipoibd/hca"
)

// handleState is the state of a peer's address handle.
//
//	from    | to      | cause                          | action
//	none    | asked   | a message for the peer         | CreateAH; on InfiniBand, if the path is unknown, FindPath
//	asked   | asked   | PathFound                      | CreateAH
//	asked   | ready   | AHReady                        | send the kept messages
//	asked   | waiting | AHFailed or PathFailed,        | retry after ahBackoff, doubled each time
//	        |         | tries left                     |
//	asked   | refused | the same, final or last try    | drop the kept messages
//	waiting | asked   | the pause is over              | as after none
//	refused | none    | ahHoldoff is over              |
//	ready   | ready   | the peer is silent             | CreateAH, for a renewal; on InfiniBand FindPath
//	ready   | ready   | PathFound, of another path     | CreateAH, for a renewal
//	ready   | ready   | AHReady, of the renewal        | use the new handle, DestroyAH of the old one
//	ready   | ready   | AHFailed, of the renewal       |
//	any     | none    | Detached, or the peer goes     | DestroyAH if it was ready; drop the kept messages
//
// none, asked and waiting keep messages, ready sends them, refused drops them.
//
// A handle is renewed because some drivers (mlx5) resolve the MAC of the next hop when they create it, and
// never again: if the MAC of a peer or a router changes, packets no longer reach it. On InfiniBand the path of a peer may
// change, and with it the handle. The old handle stays in use until the new one is ready.
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
	id    uint64     // of the request, while asked; 0: the path is requested
	ah    hca.AH     // while ready
	fresh uint64     // of the request for its renewal, while ready; 0: none
	asked time.Time  // when ah, or its renewal, was last requested
	path  hca.UDPath // of the last request; zero: it failed, or RoCE
	tries int        // requests since handleNone
	alarm alarm[*peer]
}

// outgoing is a message from the host to a peer.
type outgoing struct {
	msg     []byte // fresh
	control bool   // ARP, RARP or ND, which does not make the peer a used one
	late    bool   // it was kept before
}

// handles are the outstanding requests and the pauses of all peers.
type handles struct {
	step   *step
	host   *host
	view   *view
	silent *silent
	lids   *lids

	lastID uint64
	asked  map[uint64]*peer
	pauses alarms[*peer]
	fresh  int // outstanding renewals, which are in asked as well
}

// send sends a message to p, now or when its handle is ready.
func (h *handles) send(p *peer, o outgoing) {
	switch p.handle.state {
	case handleReady:
		if !o.control {
			h.view.needed()
		}
		h.step.emit(SendFabric{h.host.link.dest(p), o.msg})
		h.step.sent(o.late)
	case handleRefused:
		h.step.drop(DropAHFailed)
	case handleNone:
		if !p.used && len(h.asked) >= maxAnswerAHs {
			h.step.drop(DropAHLimit)
			return
		}
		h.step.keep(&p.kept, o.msg, maxKeptBytes)
		h.becomeAsked(p)
	default:
		h.step.keep(&p.kept, o.msg, maxKeptBytes)
	}
}

// request requests a handle and returns the ID of the request.
func (h *handles) request(gid hca.GID, path hca.UDPath) uint64 {
	h.lastID++
	h.step.emit(CreateAH{h.lastID, gid, path})
	return h.lastID
}

// requestFor is request for a peer, by the path that is known.
func (h *handles) requestFor(p *peer) uint64 {
	p.handle.path, _ = h.lids.to(p.gid)
	p.handle.asked = h.step.now
	id := h.request(p.gid, p.handle.path)
	h.asked[id] = p
	return id
}

func (h *handles) becomeAsked(p *peer) {
	p.handle.state, p.handle.id = handleAsked, 0
	p.handle.tries++
	if _, known := h.lids.to(p.gid); known {
		p.handle.id = h.requestFor(p)
	} else {
		h.lids.find(p.gid)
	}
}

// pathAnswered continues with the handle of p after the answer to a FindPath.
func (h *handles) pathAnswered(p *peer) {
	path, known := h.lids.to(p.gid)
	switch {
	case p.handle.state == handleAsked && p.handle.id == 0 && known:
		p.handle.id = h.requestFor(p)
	case p.handle.state == handleAsked && p.handle.id == 0:
		h.retry(p, false)
	case p.handle.state == handleReady && p.handle.fresh == 0 && known && p.handle.path != path:
		h.replace(p)
	}
}

func (h *handles) becomeReady(p *peer, ah hca.AH) {
	p.handle = handle{state: handleReady, ah: ah, asked: p.handle.asked, path: p.handle.path}
	h.step.stats.AHs++
	h.view.show(p)
	if p.silence.alarm.pos > 0 { // the alarm was armed before anything could be sent
		h.silent.stop(p)
		h.silent.sent(p)
	}
	for _, msg := range h.step.drain(&p.kept) {
		h.step.emit(SendFabric{h.host.link.dest(p), msg})
		h.step.sent(true)
	}
	if p.used {
		h.view.change()
	} else {
		h.view.changeLate()
	}
}

func (h *handles) becomeWaiting(p *peer) {
	p.handle.state = handleWaiting
	h.pauses.set(&p.handle.alarm, p, h.step.now.Add(ahBackoff<<(p.handle.tries-1)))
}

func (h *handles) becomeRefused(p *peer) {
	p.handle.state = handleRefused
	h.step.dropKept(&p.kept, DropAHFailed)
	h.pauses.set(&p.handle.alarm, p, h.step.now.Add(ahHoldoff))
}

// expire ends the pauses that are over.
func (h *handles) expire() {
	for p, ok := h.pauses.due(h.step.now); ok; p, ok = h.pauses.due(h.step.now) {
		if p.handle.state == handleWaiting {
			h.becomeAsked(p)
		} else {
			p.handle = handle{}
		}
	}
}

// renew requests another handle in place of the one of p, which serves until then, unless that is
// recent or there are too many such requests. On InfiniBand it requests the path, which decides.
func (h *handles) renew(p *peer) {
	if h.host.link.lid != 0 {
		h.lids.renew(p.gid)
		return
	}
	if p.handle.fresh != 0 || h.fresh >= maxRenewals || h.step.now.Sub(p.handle.asked) < renewPause {
		return
	}
	h.replace(p)
}

// replace requests another handle in place of the one of p.
func (h *handles) replace(p *peer) {
	p.handle.fresh = h.requestFor(p)
	h.fresh++
}

// endRenewal ends the renewal of p's handle, if there is one.
func (h *handles) endRenewal(p *peer) {
	if p.handle.fresh != 0 {
		delete(h.asked, p.handle.fresh)
		p.handle.fresh = 0
		h.fresh--
	}
}

// void resets the handle of p from any state and stops watching p for silence.
func (h *handles) void(p *peer) {
	switch p.handle.state {
	case handleReady:
		h.step.stats.AHs--
		h.endRenewal(p)
		h.view.returnAH(p.handle.ah)
	case handleAsked:
		delete(h.asked, p.handle.id)
	default:
		h.pauses.stop(&p.handle.alarm)
	}
	p.handle = handle{}
	if p.shown.route {
		h.view.show(p)
	}
	h.silent.reset(p)
}

// created stores a new handle of a peer, and returns one that is no longer needed.
func (h *handles) created(ev AHReady) {
	p, ok := h.asked[ev.ID]
	switch {
	case !ok:
		h.step.emit(DestroyAH{AH: ev.AH})
	case p.handle.state == handleReady: // it is renewed
		h.endRenewal(p)
		h.view.returnAH(p.handle.ah)
		p.handle.ah = ev.AH
		h.view.show(p)
		h.view.change()
		h.pathAnswered(p) // it may be another one meanwhile
	default:
		delete(h.asked, ev.ID)
		h.becomeReady(p, ev.AH)
		h.pathAnswered(p)
	}
}

// failed retries to get a handle of a peer, or gives up.
func (h *handles) failed(ev AHFailed) {
	p, ok := h.asked[ev.ID]
	if !ok {
		return
	}
	h.step.stats.AHFailed++
	final := errors.Is(ev.Err, hca.ErrInvalid) || errors.Is(ev.Err, hca.ErrRange)
	if p.handle.state == handleReady {
		h.endRenewal(p)
		p.handle.path = hca.UDPath{} // the next answer repeats it
		return
	}
	delete(h.asked, ev.ID)
	h.retry(p, final)
}

// retry waits before the next try to get a handle of p, or gives up.
func (h *handles) retry(p *peer, final bool) {
	if final || p.handle.tries >= ahTries {
		h.becomeRefused(p)
	} else {
		h.becomeWaiting(p)
	}
}
