package ud

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Pump does one round: it polls completions, posts injected messages, then
// reads a batch of frames, which blocks until there is one or until Wake, and
// posts it. Without a free slot it reads nothing and waits for completions for
// up to 10 ms, while frames queue up in the source.
//
// It returns ErrDetached at once while no QP is attached, so a short recovery leaves
// the host's frames in the source. Any other error wraps the error of the source, the CQ
// (hca.ErrCQ) or the QP (hca.ErrIO); the owner consults recovery before it calls Pump
// again. If the QP refuses a frame with hca.ErrInvalid, Pump drops and counts it
// (PostRefused) and continues.
func (t *Tx) Pump() error {
	if t.qp == nil {
		return ErrDetached
	}
	if err := t.reap(); err != nil {
		return err
	}
	if err := t.forward(); err != nil {
		return err
	}
	if t.blocked() {
		t.stalls.Add(1)
		return t.await(time.Now().Add(stallWait))
	}
	return t.read()
}

// Drain takes completions until nothing is posted or the deadline until passes.
// It reads no frames. It returns the same errors as Pump.
func (t *Tx) Drain(until time.Time) error {
	if t.qp == nil {
		return ErrDetached
	}
	err := t.reap()
	for err == nil && t.ring.posted > 0 && time.Now().Before(until) {
		err = t.await(until)
	}
	return err
}

// Flush posts what waits and takes completions until nothing is left, or the deadline until passes.
// It reads no frames. What is left then, Outstanding and queued, stays. It returns the same errors as Pump.
func (t *Tx) Flush(until time.Time) error {
	if t.qp == nil {
		return ErrDetached
	}
	for {
		err := t.reap()
		if err == nil {
			err = t.forward()
		}
		if err != nil || t.ring.posted+t.queued() == 0 || !time.Now().Before(until) {
			return err
		}
		if t.ring.posted > 0 {
			err = t.await(until)
		}
		if err != nil {
			return err
		}
	}
}

// forward posts everything that waits: the rest of an earlier batch, then the
// slow path's messages. Once nothing waits, it observes the current snapshot.
func (t *Tx) forward() error {
	if err := t.post(); err != nil || t.blocked() {
		return err
	}
	k := min(hca.Batch, len(t.ring.free))
	n, epoch, empty := t.inject.take(t.scratch.msgs[:k], t.cfg.Peers)
	for i := range n {
		m := &t.scratch.msgs[i]
		slot := t.ring.take()
		size := copy(t.ring.bytes(slot)[txMessage:], m.msg)
		t.probe.track(slot, m.msg)
		t.describe(slot, size, route{to: m.to})
		*m = injected{}
	}
	if err := t.post(); err != nil {
		return err
	}
	if empty && len(t.wrs) == 0 {
		t.observe(epoch)
	}
	return nil
}

func (t *Tx) observe(epoch uint64) {
	s := &t.ring.stats
	t.grace.observe(epoch, s.posts.Load(), s.completions.Load()+s.reset.Load())
}

// blocked reports whether Tx cannot read frames now.
func (t *Tx) blocked() bool { return len(t.wrs) > 0 || len(t.ring.free) == 0 }

// read reads a batch of frames into free slots and posts those to be sent.
func (t *Tx) read() error {
	s := &t.scratch
	k := min(hca.Batch, len(t.ring.free))
	for i := range k {
		s.bufs[i] = t.ring.bytes(t.ring.peek(i))
	}
	if t.ring.posted > 0 {
		t.nudge.Reset(reapEvery)
	}
	n, err := t.cfg.Source.ReadBatch(s.bufs[:k], s.sizes[:k])
	for i := range n {
		s.slots[i] = t.ring.take()
	}
	if list := t.recorders.get(); list != nil {
		t.recordRead(list, n)
	}
	t.tally.add(Read, n)
	t.dispatch(n)
	if err != nil {
		err = fmt.Errorf("read frames: %w", err)
	}
	if perr := t.post(); perr != nil {
		return perr
	}
	return err
}

// dispatch handles the n frames just read.
func (t *Tx) dispatch(n int) {
	rules := txRules{int(t.mtu.Load()), t.large, *t.sources.Load(), t.cfg.Scope, t.cfg.PKey, t.cfg.Peers.Load()}
	for i := range n {
		slot := t.scratch.slots[i]
		if reason := t.decide(&rules, slot, t.scratch.sizes[i]); reason != Sent {
			t.tally.add(reason, 1)
			t.ring.give(slot)
		}
	}
	t.bytes.flush()
}

// decide describes the send of one frame, passes it to the slow path, or
// returns the reason to drop it.
func (t *Tx) decide(rules *txRules, slot uint32, size int) Reason {
	buf := t.ring.bytes(slot)
	if size < 0 || size > len(buf) {
		return Truncated
	}
	frame := buf[:size]
	to, reason := rules.classify(frame)
	if reason == SlowPathed {
		return t.toSlowPath(frame[txEther:], to)
	}
	if reason == Sent {
		ipoib.PutHeader(frame[txMessage:], etherTypeOf(frame[txEther:]))
		t.describe(slot, size-txMessage, to)
		t.bytes.add(to.bytes, size-txPayload)
	}
	return reason
}

// toSlowPath passes a frame to the slow path; of a large one, only the first segment, which is
// enough to resolve the address. The other segments are dropped: TCP retransmits them.
func (t *Tx) toSlowPath(ether []byte, by route) Reason {
	others := 0
	if by.mss > 0 {
		others = by.segments(len(ether)) - 1
		if ether = by.first(ether); ether == nil {
			return Offload
		}
	}
	if !t.cfg.SlowPath.FromHost(ether) {
		return SlowPathFull
	}
	t.lost.Add(uint64(others))
	return SlowPathed
}

// describe builds the work request for the n bytes of message in a slot.
func (t *Tx) describe(slot uint32, n int, by route) {
	t.dest[slot] = by.to
	t.seq++
	wr := hca.SendWR{ID: t.ring.id(slot), SGList: t.sge[slot : slot+1 : slot+1], UD: by.to}
	at := txMessage
	if by.mss > 0 {
		at = txEther + by.headers
		wr.LSO = hca.LSO{Header: t.ring.bytes(slot)[txMessage:at], MSS: by.mss}
	}
	t.sge[slot] = t.ring.sge(slot, at, txMessage+n-at)
	if t.seq%signalEvery == 0 {
		wr.Flags = hca.SendSignaled
	}
	t.wrs = append(t.wrs, wr)
}

// post posts the described sends. If the queue is full, the rest waits in wrs. If
// the QP refuses a send as invalid, post drops only that send and posts the rest. If
// that send was the last of a batch, the completion of the next send accounts for
// those before it.
func (t *Tx) post() error {
	for len(t.wrs) > 0 {
		t.wrs[len(t.wrs)-1].Flags = hca.SendSignaled
		list, at := t.recorders.get(), time.Time{}
		if list != nil {
			at = time.Now()
		}
		t.setWaiting(len(t.wrs)) // while the device has not taken them
		if t.cfg.OnPost != nil {
			t.cfg.OnPost()
		}
		n, err := t.qp.PostSend(t.wrs)
		if list != nil {
			t.recordSent(list, at, t.wrs[:n])
		}
		for i := range n {
			wr := &t.wrs[i]
			slot := uint32(wr.ID)
			t.ring.post(slot)
			t.order.push(slot)
			if mss := wr.LSO.MSS; mss > 0 {
				t.cut.Add(1)
				t.pieces.Add(uint64((int(t.sge[slot].Length) + mss - 1) / mss))
			}
		}
		t.setWaiting(copy(t.wrs, t.wrs[n:]))
		switch {
		case err == nil || errors.Is(err, hca.ErrQueueFull):
			return nil
		case errors.Is(err, hca.ErrInvalid) && len(t.wrs) > 0:
			t.refuse(1)
		default:
			left := len(t.wrs)
			t.refuse(left)
			return fmt.Errorf("post %d sends: %w", left, err)
		}
	}
	return nil
}

// refuse drops the first n descriptors and counts them as PostRefused.
func (t *Tx) refuse(n int) {
	for i := range n {
		slot := uint32(t.wrs[i].ID)
		t.probe.released(slot, false)
		t.ring.give(slot)
	}
	t.tally.add(PostRefused, n)
	t.setWaiting(copy(t.wrs, t.wrs[n:]))
}

// setWaiting truncates the descriptors to the first n.
func (t *Tx) setWaiting(n int) {
	t.wrs = t.wrs[:n]
	t.waiting.Store(int64(n))
}
