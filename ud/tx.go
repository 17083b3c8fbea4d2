package ud

import (
	"fmt"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

const (
	// signalEvery is the interval of signaled sends; the last send of a batch
	// is always signaled, so that no slot waits for later traffic.
	signalEvery = 16
	// MinTxSlots leaves room for two batches: one posted, one being read.
	MinTxSlots = 2 * hca.Batch
	// stallWait bounds a wait for completions, so that it delays neither the
	// slow path's messages nor the owner's commands for longer.
	stallWait = 10 * time.Millisecond
	// reapEvery bounds how long a completion may stay in the CQ while the host
	// is silent.
	reapEvery = 10 * time.Millisecond
)

// TxConfig configures a Tx.
type TxConfig struct {
	Slots     int // at least MinTxSlots, at most the QP's send queue depth
	MaxMTU    int // upper bound of the interface's MTU, in bytes of IP packet
	MTU       int // the interface's current MTU; see SetMTU
	Scope     uint8
	PKey      hca.PKey // scope and P_Key of the broadcast group
	Source    Source
	SlowPath  SlowPath
	Peers     *Snapshot
	OnFailure func(Failure) // called for each send that fails; must not block; may be nil
	// OnPost is called before sends are posted, once Progress counts them as waiting; must not
	// block; may be nil.
	OnPost func()
}

func (c *TxConfig) check() error {
	if c.Slots < MinTxSlots || c.MTU <= 0 || c.MaxMTU < c.MTU ||
		c.Source == nil || c.SlowPath == nil || c.Peers == nil {
		return fmt.Errorf("create Tx with %d slots, MTU %d and largest MTU %d: %w",
			c.Slots, c.MTU, c.MaxMTU, hca.ErrInvalid)
	}
	return nil
}

// Tx carries frames from the host to a queue pair. One goroutine owns it and
// calls Attach, Detach, Pump and Drain. Any goroutine may call the other
// methods.
type Tx struct {
	cfg     TxConfig
	mtu     atomic.Int32 // for frames of the host
	portMTU atomic.Int32 // for injected messages
	sources atomic.Pointer[sources]
	ring    *ring
	qp      hca.Queue
	cq      hca.CQ
	// large: the device fills in checksums and segments frames.
	large bool

	order  fifo         // posted slots
	sge    []hca.SGE    // by slot: buffer of its send
	dest   []hca.UDDest // by slot: destination of its send
	wrs    []hca.SendWR // sends described but not yet posted
	seq    uint         // number of sends described
	bytes  peerBytes
	inject injectQueue
	grace  grace
	probe  sentProbe
	nudge  *time.Timer // wakes a blocked read while sends are outstanding

	tally   tally
	failed  statuses
	stalls  atomic.Uint64
	cut     atomic.Uint64 // frames that were posted to be segmented
	pieces  atomic.Uint64 // segments of these frames
	lost    atomic.Uint64 // segments of large frames for the slow path, except the first of each
	waiting atomic.Int64  // len(wrs), for other goroutines

	recorders recorders

	scratch txScratch
	waste   *waste
}

// txScratch is the working memory of Pump.
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
		ring:  newRing(cfg.Slots),
		order: newFIFO(cfg.Slots),
		sge:   make([]hca.SGE, cfg.Slots),
		dest:  make([]hca.UDDest, cfg.Slots),
		wrs:   make([]hca.SendWR, 0, hca.Batch),
		waste: newWaste(cfg.MaxMTU),
	}
	t.SetMTU(cfg.MTU, cfg.MTU)
	t.SetSources(nil)
	t.grace.stop()
	t.nudge = time.AfterFunc(time.Hour, cfg.Source.Wake)
	t.nudge.Stop()
	return t, nil
}

// SetMTU sets the interface's MTU, which bounds the frames of the host, and the port's MTU, which
// bounds injected messages. Both are in bytes of IP packet, at most TxConfig.MaxMTU.
func (t *Tx) SetMTU(mtu, port int) {
	t.mtu.Store(int32(min(mtu, t.cfg.MaxMTU)))
	t.portMTU.Store(int32(min(port, t.cfg.MaxMTU)))
}

// Attach makes Tx send through a queue of a QP. sendCQ is its send CQ. maxTSO is the MaxTSO of the
// device (hca.DeviceAttr). If it is 0, frames that request a checksum or segmentation are
// dropped. mr holds the slots and has at least Slots * TxStride(MaxMTU, maxTSO) bytes. The
// generation must differ from every earlier one whose completions may still arrive.
// Errors: hca.ErrInvalid if a QP is already attached or if mr or the QP's send
// queue is too small.
func (t *Tx) Attach(qp hca.Queue, sendCQ hca.CQ, mr hca.MR, maxTSO int, generation uint32) error {
	if depth := qp.Spec().SendWRs; t.qp != nil || depth < t.cfg.Slots {
		return fmt.Errorf("attach Tx with %d slots (attached already: %v) to QP %v with %d sends: %w",
			t.cfg.Slots, t.qp != nil, qp.Num(), depth, hca.ErrInvalid)
	}
	if err := t.ring.attach(mr, TxStride(t.cfg.MaxMTU, maxTSO), generation); err != nil {
		return err
	}
	t.qp, t.cq, t.large = qp, sendCQ, maxTSO > 0
	t.grace.start(t.cfg.Peers.epoch())
	t.inject.setOpen(true)
	return nil
}

// Detach drops all frames that are posted or waiting to be posted, counts them
// as Reset, and returns their number. The QP must be in RESET, destroyed, or no
// longer sending; after Detach Tx uses neither the QP, nor its CQ, nor the
// memory. Detach is idempotent.
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

// Inject queues a message of the slow path, from its IPoIB header on, and takes
// ownership of it. The MTU of the port bounds it. It returns false if the message was dropped and counted. It
// never blocks.
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
	case len(msg) > int(t.portMTU.Load())+ipoib.HeaderLen:
		return TooLong
	}
	return Injected
}

// Wake makes the current Pump, or else the next one, return soon.
func (t *Tx) Wake() { t.cfg.Source.Wake() }

// Epoch returns the number of the oldest snapshot that may have routed a frame
// that is not yet completed. An address handle may be destroyed once its last
// snapshot is older, provided that the same goroutine publishes and injects.
// Epoch advances only in Pump; while the host is silent, Wake makes Pump run.
func (t *Tx) Epoch() uint64 {
	if e := t.grace.safe.Load(); e != detachedEpoch {
		return e
	}
	return t.cfg.Peers.epoch()
}

// Outstanding returns the number of posted sends.
func (t *Tx) Outstanding() int { return int(t.ring.stats.outstanding.Load()) }

// queued returns the number of frames that wait to be posted.
func (t *Tx) queued() int { return int(t.waiting.Load()) + t.inject.len() }
