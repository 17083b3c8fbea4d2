package neigh

import (
	"sync/atomic"
	"time"

	"ipoibd/ud/ipoib"
)

// hostMAC holds the MACs that may send from the host's side: ib0's own, and one
// MAC behind ib0, unless ib0 is alone. The first one seen is learnt. Another
// MAC replaces it after foreignMACSilence, or when ib0's port changes.
type hostMAC struct {
	own, learnt station
	alone       bool // no station can be behind ib0
}

// station is a MAC on the host's side. The zero value means none.
type station struct {
	mac  ipoib.MAC
	seen time.Time
	sent *atomic.Bool // set by snapshots: sent since marks were last read; nil if there is no station
}

func newStation(m ipoib.MAC, now time.Time) station {
	return station{mac: m, seen: now, sent: new(atomic.Bool)}
}

// is reports whether m is this station.
func (s station) is(m ipoib.MAC) bool { return s.sent != nil && s.mac == m }

// refresh reads and clears the mark of the data path.
func (s *station) refresh(now time.Time) {
	if s.sent != nil && s.sent.Swap(false) {
		s.seen = now
	}
}

// is reports whether m belongs to the host.
func (h *hostMAC) is(m ipoib.MAC) bool { return h.own.is(m) || h.learnt.is(m) }

// dest returns the destination MAC of unicast frames for the host.
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

// admit reports whether a frame from src may pass, and whether src was learnt
// from it. src must be a unicast address.
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

// refresh reads the marks of the data path. It forgets the learnt MAC if that
// has been silent but ib0's own MAC has not, and reports whether it did.
func (h *hostMAC) refresh(now time.Time) (forgot bool) {
	h.own.refresh(now)
	h.learnt.refresh(now)
	silent := h.learnt.sent != nil && now.Sub(h.learnt.seen) >= foreignMACSilence
	if silent && now.Sub(h.own.seen) < foreignMACSilence {
		return h.unlearn()
	}
	return false
}

// unlearn forgets the learnt MAC and reports whether there was one.
func (h *hostMAC) unlearn() bool {
	had := h.learnt.sent != nil
	h.learnt = station{}
	return had
}
