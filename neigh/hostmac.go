package neigh

import (
	"sync/atomic"
	"time"

	"ipoibd/ud/ipoib"
)

// hostMAC is who may send from the host's side: ib0 itself, and one MAC behind
// it, unless ib0 is alone. The first one seen is that one. It gives way to
// another after foreignMACSilence, or when ib0's place changes.
type hostMAC struct {
	own, learnt station
	alone       bool // nobody is behind ib0
}

// station is a MAC of the host's side. The zero value is nobody.
type station struct {
	mac  ipoib.MAC
	seen time.Time
	sent *atomic.Bool // set by snapshots: sent since the last look; nil for nobody
}

func newStation(m ipoib.MAC, now time.Time) station {
	return station{mac: m, seen: now, sent: new(atomic.Bool)}
}

// is reports whether m is this station.
func (s station) is(m ipoib.MAC) bool { return s.sent != nil && s.mac == m }

// refresh takes over the mark of the data path.
func (s *station) refresh(now time.Time) {
	if s.sent != nil && s.sent.Swap(false) {
		s.seen = now
	}
}

// is reports whether m belongs to the host.
func (h *hostMAC) is(m ipoib.MAC) bool { return h.own.is(m) || h.learnt.is(m) }

// dest returns the MAC that unicast frames towards the host are addressed to.
func (h *hostMAC) dest() ipoib.MAC {
	if h.learnt.sent != nil {
		return h.learnt.mac
	}
	return h.own.mac
}

// setOwn sets ib0's own MAC.
func (h *hostMAC) setOwn(m ipoib.MAC, now time.Time) {
	h.own = newStation(m, now)
	if h.learnt.is(m) {
		h.learnt = station{}
	}
}

// admit reports whether a frame of src may pass, and whether src was learnt by
// it. src is a unicast address.
func (h *hostMAC) admit(src ipoib.MAC, now time.Time) (ok, learnt bool) {
	h.learnt.refresh(now)
	switch {
	case h.own.is(src):
		h.own.seen = now
	case h.learnt.is(src):
		h.learnt.seen = now
	case h.alone:
		return false, false
	case h.learnt.sent == nil || now.Sub(h.learnt.seen) >= foreignMACSilence:
		h.learnt = newStation(src, now)
		return true, true
	default:
		return false, false
	}
	return true, false
}

// refresh reads the marks of the data path and forgets the learnt MAC when it
// was silent while ib0's own was not; it reports whether it did.
func (h *hostMAC) refresh(now time.Time) (forgot bool) {
	h.own.refresh(now)
	h.learnt.refresh(now)
	silent := h.learnt.sent != nil && now.Sub(h.learnt.seen) >= foreignMACSilence
	if silent && now.Sub(h.own.seen) < foreignMACSilence {
		return h.forget()
	}
	return false
}

// forget forgets the learnt MAC and reports whether there was one.
func (h *hostMAC) forget() bool {
	had := h.learnt.sent != nil
	h.learnt = station{}
	return had
}
