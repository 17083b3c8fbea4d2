package ud

import (
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// Recorder gets what passes through a Tx or an Rx, for a packet capture. Its methods are called
// by the owner of that Tx or Rx. They copy what they keep, never block and never allocate.
type Recorder interface {
	// FromHost gets a frame as it was read from the source.
	FromHost(at time.Time, frame []byte)
	// ToHost gets a frame that the sink has accepted, in pieces.
	ToHost(at time.Time, pieces [][]byte)
	// Sent gets a send that the QP has accepted. msg is the message; for a large send,
	// its header and the whole payload.
	Sent(at time.Time, wr *hca.SendWR, msg []byte)
	// Received gets a successful receive, before any check of its message. buf is its whole
	// memory, which begins with the GRH area.
	Received(at time.Time, wc *hca.WC, buf []byte)
	// Done ends a batch.
	Done()
}

// recorders are the current recorders. Without any, a batch costs one atomic load.
type recorders struct{ list atomic.Pointer[[]Recorder] }

func (r *recorders) set(list []Recorder) {
	if len(list) == 0 {
		r.list.Store(nil)
		return
	}
	r.list.Store(&list)
}

// get returns the current recorders, or nil.
func (r *recorders) get() []Recorder {
	if p := r.list.Load(); p != nil {
		return *p
	}
	return nil
}

// Record makes Tx pass what it carries to these recorders, from the next batch on. The list
// must not change afterwards. Any goroutine may call it.
func (t *Tx) Record(list []Recorder) { t.recorders.set(list) }

// Record is like [Tx.Record].
func (r *Rx) Record(list []Recorder) { r.recorders.set(list) }

// recordRead records the first n frames of a batch, at the time at.
func (t *Tx) recordRead(list []Recorder, n int) {
	at := time.Now()
	for i := range n {
		buf, size := t.ring.bytes(t.scratch.slots[i]), t.scratch.sizes[i]
		if size < 0 || size > len(buf) {
			continue // dropped as Truncated
		}
		for _, rec := range list {
			rec.FromHost(at, buf[:size])
		}
	}
	done(list)
}

// recordSent records sends that the QP has accepted. at is a time before the post: afterwards,
// an answer may already have been recorded.
func (t *Tx) recordSent(list []Recorder, at time.Time, sent []hca.SendWR) {
	for i := range sent {
		wr := &sent[i]
		slot := uint32(wr.ID)
		n := len(wr.LSO.Header) + int(t.sge[slot].Length)
		msg := t.ring.bytes(slot)[txMessage:][:n]
		for _, rec := range list {
			rec.Sent(at, wr, msg)
		}
	}
	done(list)
}

// recordReceived records the successful ones of the first n completions.
func (r *Rx) recordReceived(list []Recorder, n int) {
	at := time.Now()
	for i := range n {
		wc := &r.scratch.wcs[i]
		if wc.Status != hca.WCSuccess || !r.ring.isPosted(wc.ID) {
			continue
		}
		for _, rec := range list {
			rec.Received(at, wc, r.ring.bytes(uint32(wc.ID)))
		}
	}
	done(list)
}

// recordWritten records the frames that the sink has accepted. at is a time before the write.
func recordWritten(list []Recorder, at time.Time, frames [][][]byte, accepted []bool) {
	for i, ok := range accepted {
		for _, rec := range list {
			if ok {
				rec.ToHost(at, frames[i])
			}
		}
	}
	done(list)
}

func done(list []Recorder) {
	for _, rec := range list {
		rec.Done()
	}
}
