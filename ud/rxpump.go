package ud

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/hca"
)

// Pump does one round: it takes a batch of completions, passes their messages to
// the sink or the slow path, and reposts the buffers. If there is no completion,
// it waits until one arrives, the CQ is woken, or the deadline until passes
// (zero: no deadline).
//
// A later Pump posts the buffers that could not be posted. A Pump in which a receive failed
// leaves them to a later one, unless no receive is posted any more: a failed receive moves the
// QP to ERR, and not every provider flushes what is posted there (rdmavt's does not). After a
// flush, Pump posts no buffers until Attach or Refill, because a QP in ERR would flush them
// again at once.
//
// It returns ErrDetached at once while no QP is attached. Any other error wraps
// the error of the CQ (hca.ErrCQ), the QP (hca.ErrInvalid, hca.ErrIO) or the sink;
// the owner consults recovery before it calls Pump again.
func (r *Rx) Pump(until time.Time) error {
	if r.qp == nil {
		return ErrDetached
	}
	n, err := r.next(until)
	if err != nil {
		return err
	}
	werr := r.deliver(n)
	if perr := r.repost(); perr != nil {
		return perr
	}
	return werr
}

// Drain calls Pump until no receive is posted or the deadline until passes. It
// is meant for a QP that was moved to ERR.
func (r *Rx) Drain(until time.Time) error {
	var err error
	for err == nil && r.Outstanding() > 0 && time.Now().Before(until) {
		err = r.Pump(until)
	}
	return err
}

// Flush delivers the messages that have arrived. It does not wait. It returns the same errors as Pump.
func (r *Rx) Flush() error {
	if r.qp == nil {
		return ErrDetached
	}
	for {
		n, err := r.poll()
		if n == 0 || err != nil {
			return err
		}
		werr := r.deliver(n)
		if err := r.repost(); err != nil {
			return err
		}
		if werr != nil {
			return werr
		}
	}
}

// next fills scratch with completions, waiting for the first one, and returns
// their number. It polls again after Arm so that no wake-up is lost (see hca,
// Waiting).
func (r *Rx) next(until time.Time) (int, error) {
	if n, err := r.poll(); n > 0 || err != nil {
		return n, err
	}
	if err := r.cq.Arm(); err != nil {
		return 0, fmt.Errorf("arm receive CQ: %w", err)
	}
	if n, err := r.poll(); n > 0 || err != nil {
		return n, err
	}
	if err := r.cq.Wait(until); err != nil {
		return 0, fmt.Errorf("wait for receive completions: %w", err)
	}
	return r.poll()
}

// poll fills scratch with the available completions. If the device has failed, it completes
// every posted receive with WR_FLUSH_ERR instead, because the device no longer will (R18).
func (r *Rx) poll() (int, error) {
	n, err := r.cq.Poll(r.scratch.wcs[:])
	if err != nil {
		for slot := uint32(0); errors.Is(err, hca.ErrIO) && r.ring.posted > 0; slot++ {
			if r.ring.state[slot] == slotPosted {
				r.ring.complete(slot)
				r.fail(&hca.WC{
					ID:     r.ring.id(slot),
					Status: hca.WCWRFlushErr,
					Opcode: hca.WCRecv,
					QPN:    r.qp.Num(),
				}, slot)
				r.ring.give(slot)
			}
		}
		return 0, fmt.Errorf("poll receive CQ: %w", err)
	}
	return n, nil
}

// deliver processes the n completions in scratch and frees their slots.
func (r *Rx) deliver(n int) error {
	rules := rxRules{int(r.mtu.Load()), *r.lids.Load(), r.cfg.Peers.Load()}
	if list := r.recorders.get(); list != nil {
		r.recordReceived(list, n)
	}
	slots, frames := r.scratch.slots[:0], r.scratch.frames[:0]
	for i := range n {
		wc := &r.scratch.wcs[i]
		slot, ok := r.ring.lookup(wc.ID)
		if !ok {
			continue
		}
		r.ring.complete(slot)
		slots = append(slots, slot)
		if frame := r.accept(&rules, slot, wc, &r.scratch.from[len(frames)]); frame != nil {
			r.scratch.counts[len(frames)] = max(1, wc.LRO.Segments)
			frames = append(frames, frame)
		}
	}
	r.bytes.flush()
	if n > 0 && r.cfg.OnReceive != nil {
		r.cfg.OnReceive()
	}
	err := r.write(frames, r.scratch.from[:len(frames)])
	for _, slot := range slots {
		r.ring.give(slot)
	}
	return err
}

// accept returns the Ethernet frame that a completion holds for the host, and stores the key of its sender, or
// returns nil if there is none.
func (r *Rx) accept(rules *rxRules, slot uint32, wc *hca.WC, from *hca.UDSource) (frame []byte) {
	if wc.Status != hca.WCSuccess {
		r.fail(wc, slot)
		return nil
	}
	messages := max(1, wc.LRO.Segments)
	r.tally.add(Received, messages)
	buf := r.ring.bytes(slot)
	m, reason := rules.inspect(buf, wc)
	if (reason == TooLong || reason == UnknownStation) && leaveLast(buf, wc) {
		r.tally.add(reason, messages-1)
		messages = 1
		m, reason = rules.inspect(buf, wc)
	}
	if reason == Delivered {
		r.bytes.add(m.bytes, m.end-rxPayload)
		*from = m.from.Key()
		return m.ethernet(buf)
	}
	if reason == SlowPathed {
		reason = r.cfg.SlowPath.FromFabric(buf[rxMessage:m.end], m.from)
	}
	r.tally.add(reason, messages)
	return nil
}

func (r *Rx) fail(wc *hca.WC, slot uint32) {
	r.failed.add(wc.Status)
	r.flushed = r.flushed || wc.Status == hca.WCWRFlushErr
	r.suspect = true
	if r.cfg.OnFailure != nil {
		r.cfg.OnFailure(Failure{WC: *wc, SGE: r.sge[slot]})
	}
}

// write joins frames that are segments of one flow of one sender, passes the result to the sink, and counts
// how many the sink accepted.
func (r *Rx) write(frames [][]byte, from []hca.UDSource) error {
	if len(frames) == 0 {
		return nil
	}
	joined := r.join.Join(frames, from)
	accepted := r.scratch.accepted[:len(joined)]
	list, at := r.recorders.get(), time.Time{}
	if list != nil {
		at = time.Now()
	}
	_, err := r.cfg.Sink.WriteVectors(joined, accepted)
	if list != nil {
		recordWritten(list, at, joined, accepted)
	}
	delivered, refused := 0, 0
	for k, ok := range accepted {
		n := 0
		for _, i := range r.join.Inputs(k) {
			n += r.scratch.counts[i]
		}
		if ok {
			delivered += n
		} else {
			refused += n
		}
	}
	r.tally.add(Delivered, delivered)
	r.tally.add(SinkRefused, refused)
	r.merged.Add(uint64(delivered + refused - len(joined)))
	if err != nil {
		return fmt.Errorf("write frames: %w", err)
	}
	return nil
}

// repost posts every free slot. If the queue is full, or the QP may be in ERR, a later call posts
// them.
func (r *Rx) repost() error {
	if r.suspect {
		r.suspect = false
		if r.ring.posted > 0 {
			return nil
		}
	}
	for !r.flushed && len(r.ring.free) > 0 {
		wrs := r.scratch.wrs[:min(hca.Batch, len(r.ring.free))]
		for i := range wrs {
			slot := r.ring.peek(i)
			wrs[i] = hca.RecvWR{ID: r.ring.id(slot), SGList: r.sge[slot : slot+1 : slot+1]}
		}
		n, err := r.qp.PostRecv(wrs)
		for range n {
			r.ring.post(r.ring.take())
		}
		switch {
		case errors.Is(err, hca.ErrQueueFull) || err == nil && n < len(wrs):
			return nil
		case err != nil:
			return fmt.Errorf("post receives: %w", err)
		}
	}
	return nil
}
