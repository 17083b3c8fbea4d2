package soft

import (
	"time"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// delivery gives messages to queues. It keeps the receive side of the last one
// locked, so that a run of messages for one queue costs one lock and one signal;
// release ends the run.
type delivery struct {
	lane  *lane  // at which the messages arrived
	from  *queue // that sent them to this port; nil: they came from the wire
	queue *queue // recvMu is held
	env   *softqp.Env

	// patience is the timer of a wait for receives. If it is nil, messages without
	// a receive are dropped at once: a sender to its own port cannot wait, since it
	// holds a lock that posting may need.
	patience *time.Timer

	// reader is the CQ whose owner is this goroutine, or nil. A message for one of its QPs
	// that has no receive stops the delivery, so that the owner can post some.
	reader  *CQ
	stopped bool
	wanted  bool // the last wait for a receive ended because an owner waits for the turn

	run tally
}

// tally holds the counts of one run. An atomic addition for each message would take longer than
// parsing the message.
type tally struct {
	packets, bytes int // received
	lowIDs         int // ICRC right with an unknown identification of 0-63
	delivered      int
}

// dispatch finds the receivers of a message and delivers it. If that sets stopped, dispatch
// must be repeated after the owner has posted receives.
func (x *delivery) dispatch(in *softqp.Inbound) {
	r := x.lane.dev.routes.Load()
	switch {
	case in.Path.Dst.IsMulticast():
		x.multicast(r.groups[in.Path.Dst], in)
	case in.DestQPN == hca.QPNMulticast && x.lane.dev.cfg.Peers != nil:
		x.multicast(r.attached, in)
	case in.DestQPN == hca.QPNGSI:
		x.lane.counts.add(dropGSI, 1)
	default:
		if qp := r.qps[in.DestQPN]; qp != nil {
			q := x.queueOf(qp)
			if reason := x.give(q, in); !x.stop(q, reason) {
				x.count(reason)
				x.noteFlow(q, in, reason)
			}
			return
		}
		x.lane.counts.add(dropNoQP, 1)
		x.lane.dev.strays.note(in)
	}
}

// noteFlow notes the flow of a message from the wire, which the fast path of its QP has left to the queue.
func (x *delivery) noteFlow(q *queue, in *softqp.Inbound, reason softqp.Reason) {
	f := q.qp.fast.Load()
	if f == nil || x.from != nil {
		return
	}
	if flow := f.gate.Flow(in.Payload[0]); reason == softqp.Passed {
		q.arrived = append(q.arrived, flow)
	} else {
		f.gate.Received(x.lane.index, flow, 1)
	}
}

// multicast delivers to every member; a group's packet has the multicast QPN
// (IBA 9.6.1.2). The groups of all partitions share the addresses of the underlay, so a
// message for another partition is not lost here. It is counted once if no member has its
// P_Key, and once if its sender, which blocks it, is the only one.
func (x *delivery) multicast(members []*QP, in *softqp.Inbound) {
	switch {
	case in.DestQPN != hca.QPNMulticast:
		x.lane.counts.add(dropGroupQPN, 1)
		return
	case len(members) == 0:
		x.lane.counts.add(dropNotAttached, 1)
		return
	}
	ours, blocked := false, false
	for _, q := range members {
		if q.spec.BlockLoopback && x.from != nil && x.from.qp == q {
			blocked = true
			continue
		}
		to := x.queueOf(q)
		reason := x.give(to, in)
		if len(members) == 1 && x.stop(to, reason) {
			return
		}
		if reason != softqp.DropPKey {
			x.count(reason)
			ours = true
		}
	}
	switch {
	case ours:
	case blocked:
		x.lane.counts.add(loopBlocked, 1)
	default:
		x.lane.counts.add(rxOtherPKey, 1)
	}
}

// queueOf returns the queue of a QP that gets the messages of this delivery. A QP's messages to
// itself return to the queue that sent them.
func (x *delivery) queueOf(q *QP) *queue {
	if x.from != nil && x.from.qp == q {
		return x.from
	}
	return q.queues[x.lane.index%len(q.queues)]
}

// give delivers to one queue.
func (x *delivery) give(q *queue, in *softqp.Inbound) softqp.Reason {
	x.hold(q)
	reason := q.core.Deliver(x.env, in)
	x.wanted = false
	unhurried := x.unhurried() // it may change meanwhile
	if limit := x.limit(q, reason, unhurried); limit > 0 {
		x.awaitRecv(q, limit, unhurried)
		reason = q.core.Deliver(x.env, in)
		q.starving = reason == softqp.DropNoRecv
	}
	if reason == softqp.FailRecvLength || reason == softqp.FailRecvAccess {
		x.lane.dev.failing.Store(true)
	}
	return reason
}

// limit returns how long to wait for receives of q.
func (x *delivery) limit(q *queue, reason softqp.Reason, unhurried bool) time.Duration {
	switch {
	case reason != softqp.DropNoRecv || x.patience == nil || q.recvCQ == x.reader || x.lane.turn.ended.Load():
		return 0
	case unhurried:
		return soleLimit
	case q.starving:
		return 0
	default:
		return q.waits.left(time.Now())
	}
}

// unhurried reports whether a long wait for receives delays no other QP: the stand-in delivers, and
// the device has a single QP. The messages for its slow owner then stay in the transport's buffer.
func (x *delivery) unhurried() bool {
	return x.reader == nil && len(x.lane.dev.routes.Load().qps) == 1
}

// stop stops the delivery if the owner of q must first take completions and post receives: its own
// goroutine is delivering, or it waits for the turn that the stand-in has.
func (x *delivery) stop(q *queue, reason softqp.Reason) bool {
	switch {
	case reason != softqp.DropNoRecv || x.patience == nil:
	case q.recvCQ == x.reader:
		x.release() // its completions may be among those of this run
		x.stopped = !q.recvCQ.empty()
	case x.unhurried():
		x.stopped = x.wanted
	}
	return x.stopped
}

// count counts how a delivery ended.
func (x *delivery) count(reason softqp.Reason) {
	if reason == softqp.Passed {
		x.run.delivered++
	} else {
		x.lane.counts.engine(reason)
	}
}

// awaitRecv waits, up to a limit, until the owner of q, which has no receive, posts some. An
// unhurried wait also ends when an owner waits for the turn, and when it would delay another QP.
// During the wait all datagrams stay in the transport's buffer, including those for other QPs. So
// after a timeout it does not wait for q again until its owner posts. q is held before and after,
// but not in between.
func (x *delivery) awaitRecv(q *queue, limit time.Duration, unhurried bool) {
	start := time.Now()
	q.awaited = true
	x.release() // the owner may need the completions of this run to continue
	x.patience.Reset(limit)
	if unhurried {
		x.awaitUnhurried(q)
	} else {
		select {
		case <-q.refilled:
		case <-x.patience.C:
		}
		defer func() { q.waits.balance -= time.Since(start) }()
	}
	x.patience.Stop()
	x.hold(q)
	q.awaited = false
	select { // the token may have arrived after the timer fired
	case <-q.refilled:
	default:
	}
}

// awaitUnhurried is the wait of awaitRecv. An owner that wanted the turn may have got completions instead. It then
// has receives to post, and waits again only afterwards.
func (x *delivery) awaitUnhurried(q *queue) {
	for t := &x.lane.turn; ; {
		select {
		case <-q.refilled:
			return
		case <-x.patience.C:
			return
		case <-t.wanted:
			if x.wanted = t.waiting.Load() > 0; x.wanted || t.ended.Load() || !x.unhurried() {
				return
			}
		}
	}
}

const (
	// soleLimit is how long a message waits for receives of a QP if no other QP waits meanwhile. An
	// owner on a machine that is busy with other work needed more than a second for a batch.
	soleLimit = 2 * time.Second
	// maxWaits bounds how long one QP is waited for in a burst of messages.
	maxWaits = 25 * time.Millisecond
	// waitShare bounds the waits for one QP to 1/waitShare of the time of the receiving
	// goroutine, so that an owner that is always slow does not delay the other QPs.
	waitShare = 20
)

// waits is how long the goroutine that receives may wait for receives of a QP.
type waits struct {
	balance time.Duration
	at      time.Time // of the balance
}

// left returns how long the goroutine that receives may wait while other QPs wait for it,
// backPressure at most.
func (w *waits) left(now time.Time) time.Duration {
	if w.at.IsZero() {
		w.balance = maxWaits
	} else {
		w.balance = min(maxWaits, w.balance+now.Sub(w.at)/waitShare)
	}
	w.at = now
	return min(backPressure, w.balance)
}

// hold makes q the queue of the run. It loads the snapshot under the lock; see
// Device.deregister.
func (x *delivery) hold(q *queue) {
	if x.queue == q {
		return
	}
	x.release()
	q.recvMu.Lock()
	x.queue, x.env = q, x.lane.env.Load()
}

// release counts the run, delivers its completions and unlocks its queue.
func (x *delivery) release() {
	if n := &x.run; *n != (tally{}) {
		c := &x.lane.counts
		c.add(rxPackets, n.packets)
		c.add(rxBytes, n.bytes)
		c.add(icrcIDLow, n.lowIDs)
		c.add(rxDelivered, n.delivered)
		*n = tally{}
	}
	if x.queue == nil {
		return
	}
	x.queue.complete()
	x.queue.recvMu.Unlock()
	x.queue = nil
}

// complete delivers the receive completions. recvMu is held.
func (q *queue) complete() {
	q.recvCQ.pushFlows(q.core.RecvDone(), q)
	q.arrived = q.arrived[:0]
}

// settle applies the errors of one side, or of one queue, to the rest of their QPs. No lock is
// held.
func (d *Device) settle() {
	if !d.failing.Load() || !d.failing.Swap(false) {
		return
	}
	for _, q := range d.routes.Load().qps {
		q.lock()
		q.settleLocked()
		q.unlock()
	}
}
