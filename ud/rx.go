package ud

import (
	"fmt"
	"sync/atomic"

	"ipoibd/hca"
)

// MinRxSlots is one batch, since Pump posts the receives of a batch again at once.
const MinRxSlots = hca.Batch

// RxConfig is what a Rx is made from.
type RxConfig struct {
	Slots     int     // at least MinRxSlots, at most the QP's receive queue depth
	PortMTU   hca.MTU // the port's largest MTU: what a peer can send at most
	MTU       int     // the interface's MTU in bytes of IP packet; see SetMTU
	Sink      Sink
	SlowPath  SlowPath
	Peers     *Snapshot
	OnFailure func(Failure) // each receive that completed with an error; does not block. May be nil
}

func (c *RxConfig) check() error {
	if c.Slots < MinRxSlots || !c.PortMTU.Valid() || c.MTU <= 0 || c.Sink == nil || c.SlowPath == nil || c.Peers == nil {
		return fmt.Errorf("make rx of %d slots, MTU %d of %d: %w", c.Slots, c.MTU, c.PortMTU, hca.ErrInvalid)
	}
	return nil
}

// Rx carries messages from a queue pair to the host. One goroutine owns it: it
// calls Attach, Detach, Pump, Drain and Refill. The others may be called by
// any; to make a Pump return, Wake the CQ.
type Rx struct {
	cfg  RxConfig
	mtu  atomic.Int32
	ring *ring
	qp   hca.QP
	cq   hca.CQ

	sge     []hca.SGE // by slot
	flushed bool      // the QP gives buffers back: posting them again would not end

	tally  tally
	failed statuses

	scratch rxScratch
}

// rxScratch is memory of one Pump.
type rxScratch struct {
	wcs    [hca.Batch]hca.WC
	slots  [hca.Batch]uint32 // completed
	frames [hca.Batch][]byte // for the sink
	wrs    [hca.Batch]hca.RecvWR
}

// NewRx returns a Rx with no queue pair attached. Errors: hca.ErrInvalid.
func NewRx(cfg RxConfig) (*Rx, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Rx{
		cfg:  cfg,
		ring: newRing(cfg.Slots, RxStride(cfg.PortMTU)),
		sge:  make([]hca.SGE, cfg.Slots),
	}
	r.SetMTU(cfg.MTU)
	return r, nil
}

// SetMTU sets the interface's MTU in bytes of IP packet. What is longer is
// dropped: the host would drop it too, without saying so.
func (r *Rx) SetMTU(mtu int) { r.mtu.Store(int32(mtu)) }

// Attach makes qp the queue pair that messages come from and posts all receive
// buffers to it, so the QP is in INIT or a later state. recvCQ is the queue of
// its receive completions; mr, of at least Slots * RxStride(PortMTU) bytes, is
// their memory, which the device writes to (hca.AccessLocalWrite). The generation
// differs from that of every earlier Attach whose completions may still come.
// Errors: hca.ErrInvalid when one is attached already or when mr or
// the QP's receive queue is too small; an error of the post, after which Rx is
// detached.
func (r *Rx) Attach(qp hca.QP, recvCQ hca.CQ, mr hca.MR, generation uint32) error {
	if depth := qp.Spec().RecvWRs; r.qp != nil || depth < r.cfg.Slots {
		return fmt.Errorf("attach QP %v, %d receives deep, to %d slots: %w", qp.Num(), depth, r.cfg.Slots, hca.ErrInvalid)
	}
	if err := r.ring.attach(mr, generation); err != nil {
		return err
	}
	for slot := range r.sge {
		r.sge[slot] = r.ring.sge(uint32(slot), 0, r.ring.stride)
	}
	r.qp, r.cq = qp, recvCQ
	if err := r.Refill(); err != nil {
		r.Detach()
		return err
	}
	return nil
}

// Detach takes every buffer back and returns how many were posted. The QP is in
// RESET or destroyed; after Detach Rx uses neither it, nor its CQ, nor the
// memory. Harmless when repeated.
func (r *Rx) Detach() int {
	n := r.ring.reset()
	r.qp, r.cq = nil, nil
	return n
}

// Refill posts every buffer that is not posted, those that came back flushed
// too: for a queue pair that was found to be in order after a flush. Pump does
// it by itself otherwise.
func (r *Rx) Refill() error {
	if r.qp == nil {
		return ErrDetached
	}
	r.flushed = false
	return r.repost()
}

// Outstanding returns how many receives are posted.
func (r *Rx) Outstanding() int { return int(r.ring.stats.outstanding.Load()) }
