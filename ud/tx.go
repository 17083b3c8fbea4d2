package ud

import (
	"fmt"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

const (
	// signalEvery bounds how many sends in a row ask for no completion; the
	// last of a batch always asks, so that no slot waits for later traffic.
	signalEvery = 16
	// MinTxSlots leaves room for two batches: one posted, one being read.
	MinTxSlots = 2 * hca.Batch
	// stallWait bounds a wait for completions, so that a message of the slow
	// path or the owner's command is not held up longer than that.
	stallWait = 10 * time.Millisecond
	// reapEvery bounds how long a completion may lie in the CQ while the host is
	// silent.
	reapEvery = 10 * time.Millisecond
)

// TxConfig is what a Tx is made from.
type TxConfig struct {
	Slots     int // at least MinTxSlots, at most the QP's send queue depth
	MaxMTU    int // bytes of IP packet that the interface's MTU never exceeds
	MTU       int // the interface's MTU now; see SetMTU
	Scope     uint8
	PKey      hca.PKey // Scope and PKey are those of the broadcast group
	Source    Source
	SlowPath  SlowPath
	Peers     *Snapshot
	OnFailure func(Failure) // each send that completed with an error; does not block. May be nil
}

func (c *TxConfig) check() error {
	if c.Slots < MinTxSlots || c.MTU <= 0 || c.MaxMTU < c.MTU || c.Source == nil || c.SlowPath == nil || c.Peers == nil {
		return fmt.Errorf("make tx of %d slots, MTU %d of %d: %w", c.Slots, c.MTU, c.MaxMTU, hca.ErrInvalid)
	}
	return nil
}

// Tx carries frames from the host to a queue pair. One goroutine owns it: it
// calls Attach, Detach, Pump and Drain. The others may be called by any.
type Tx struct {
	cfg  TxConfig
	mtu  atomic.Int32
	ring *ring
	qp   hca.QP
	cq   hca.CQ

	order  fifo         // posted slots
	sge    []hca.SGE    // by slot: what its send names
	dest   []hca.UDDest // by slot: where it goes
	wrs    []hca.SendWR // described, not posted yet
	seq    uint         // sends described
	inject injectQueue
	grace  grace
	probe  sentProbe
	nudge  *time.Timer // wakes a read while sends are outstanding

	tally   tally
	failed  statuses
	stalls  atomic.Uint64
	waiting atomic.Int64 // len(wrs), for other goroutines

	scratch txScratch
	waste   *waste
}

// txScratch is memory of one Pump.
type txScratch struct {
	bufs  [hca.Batch][]byte
	sizes [hca.Batch]int
	slots [hca.Batch]uint32
	msgs  [hca.Batch]injected
	wcs   [hca.Batch]hca.WC
}

// NewTx returns a Tx with no queue pair attached. Errors: hca.ErrInvalid.
func NewTx(cfg TxConfig) (*Tx, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &Tx{
		cfg:   cfg,
		ring:  newRing(cfg.Slots, TxStride(cfg.MaxMTU)),
		order: newFIFO(cfg.Slots),
		sge:   make([]hca.SGE, cfg.Slots),
		dest:  make([]hca.UDDest, cfg.Slots),
		wrs:   make([]hca.SendWR, 0, hca.Batch),
		waste: newWaste(cfg.MaxMTU),
	}
	t.SetMTU(cfg.MTU)
	t.grace.stop()
	t.nudge = time.AfterFunc(time.Hour, cfg.Source.Wake)
	t.nudge.Stop()
	return t, nil
}

// SetMTU sets the interface's MTU in bytes of IP packet. One above
// TxConfig.MaxMTU counts as that.
func (t *Tx) SetMTU(mtu int) { t.mtu.Store(int32(min(mtu, t.cfg.MaxMTU))) }

// Attach makes qp the queue pair that frames go to, sendCQ the queue of its send
// completions, and mr, of at least Slots * TxStride(MaxMTU) bytes, their memory.
// The generation differs from that of every earlier Attach whose completions may
// still come.
// Errors: hca.ErrInvalid when one is attached already, when mr or the QP's send
// queue is too small.
func (t *Tx) Attach(qp hca.QP, sendCQ hca.CQ, mr hca.MR, generation uint32) error {
	if depth := qp.Spec().SendWRs; t.qp != nil || depth < t.cfg.Slots {
		return fmt.Errorf("attach QP %v, %d sends deep, to %d slots: %w", qp.Num(), depth, t.cfg.Slots, hca.ErrInvalid)
	}
	if err := t.ring.attach(mr, generation); err != nil {
		return err
	}
	t.qp, t.cq = qp, sendCQ
	t.grace.start(t.cfg.Peers.epoch())
	t.inject.setOpen(true)
	return nil
}

// Detach takes everything back that is posted or waits to be, counts it as
// dropped with the reason Reset, and returns how many frames that were. The QP
// is in RESET or destroyed, or sends nothing any more; after Detach Tx uses
// neither it, nor its CQ, nor the memory. Harmless when repeated.
func (t *Tx) Detach() int {
	t.nudge.Stop()
	n := t.ring.reset() + len(t.wrs) + t.inject.setOpen(false)
	t.tally.add(Reset, n)
	t.qp, t.cq = nil, nil
	t.probe.number = 0
	t.order.clear()
	t.setWaiting(0)
	clear(t.dest)
	clear(t.wrs[:cap(t.wrs)])
	t.grace.stop()
	return n
}

// Inject queues a message of the slow path, from its IPoIB header on. The
// message is Tx's from then on. It returns false when the message was dropped
// and counted. Never blocks.
func (t *Tx) Inject(to hca.UDDest, msg []byte) bool {
	t.tally.add(Injected, 1)
	reason := t.checkInjected(msg)
	if reason == Injected {
		reason = t.inject.put(injected{to, msg})
	}
	if reason != Injected {
		t.tally.add(reason, 1)
		return false
	}
	t.Wake()
	return true
}

func (t *Tx) checkInjected(msg []byte) Reason {
	switch {
	case len(msg) < ipoib.HeaderLen:
		return Runt
	case len(msg) > int(t.mtu.Load())+ipoib.HeaderLen:
		return TooLong
	}
	return Injected
}

// Wake makes a Pump under way, or else the next one, return soon.
func (t *Tx) Wake() { t.cfg.Source.Wake() }

// Epoch returns the number of the oldest snapshot that a frame under way may
// have been decided by: an address handle may be destroyed once its last
// snapshot is older, provided that one goroutine both publishes and injects. It
// moves on with Pump: Wake makes it do so while the host is silent.
func (t *Tx) Epoch() uint64 {
	if e := t.grace.safe.Load(); e != detachedEpoch {
		return e
	}
	return t.cfg.Peers.epoch()
}

// Outstanding returns how many sends are posted.
func (t *Tx) Outstanding() int { return int(t.ring.stats.outstanding.Load()) }

// queued returns how many frames wait to be posted.
func (t *Tx) queued() int { return int(t.waiting.Load()) + t.inject.len() }
