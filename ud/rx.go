package ud

import (
	"fmt"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/coalesce"
)

// MinRxSlots is one batch, because Pump reposts the receives of a batch at once.
const MinRxSlots = hca.Batch

// RxConfig configures an Rx.
type RxConfig struct {
	Slots     int     // at least MinRxSlots, at most the QP's receive queue depth
	PortMTU   hca.MTU // the port's largest MTU, which bounds what a peer can send
	MTU       int     // the interface's MTU in bytes of IP packet; see SetMTU
	Sink      Sink
	SlowPath  SlowPath
	Peers     *Snapshot
	OnFailure func(Failure) // called for each receive that fails; must not block; may be nil
	// OnReceive is called before what was received is passed on, once Completed counts it; must not
	// block; may be nil.
	OnReceive func()
}

func (c *RxConfig) check() error {
	if c.Slots < MinRxSlots || !c.PortMTU.Valid() || c.MTU <= 0 ||
		c.Sink == nil || c.SlowPath == nil || c.Peers == nil {
		return fmt.Errorf("create Rx with %d slots, MTU %d and port MTU %d: %w",
			c.Slots, c.MTU, c.PortMTU, hca.ErrInvalid)
	}
	return nil
}

// Rx carries messages from a queue pair to the host. One goroutine owns it and
// calls Attach, Detach, Pump, Drain and Refill. Any goroutine may call the
// other methods; to make a Pump return, Wake the CQ.
type Rx struct {
	cfg  RxConfig
	mtu  atomic.Int32
	lids atomic.Pointer[portLID]
	ring *ring
	qp   hca.Queue
	cq   hca.CQ

	sge     []hca.SGE // by slot
	flushed bool      // the QP flushes buffers, so posting them again would loop forever
	suspect bool      // a receive of the last batch failed, so the QP may be in ERR

	join     *coalesce.Coalescer
	joinsUDP bool

	tally  tally
	failed statuses
	merged atomic.Uint64 // messages that were joined to the previous one

	recorders recorders

	bytes   peerBytes
	scratch rxScratch
}

// rxScratch is the working memory of Pump.
type rxScratch struct {
	wcs    [hca.Batch]hca.WC
	slots  [hca.Batch]uint32       // completed
	frames [hca.Batch][]byte       // for the sink
	from   [hca.Batch]hca.UDSource // by frame
	counts [hca.Batch]int          // messages, by frame

	accepted [hca.Batch]bool // by joined frame
	wrs      [hca.Batch]hca.RecvWR
}

// NewRx returns an Rx with no queue pair attached. Errors: hca.ErrInvalid.
func NewRx(cfg RxConfig) (*Rx, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Rx{
		cfg:  cfg,
		ring: newRing(cfg.Slots),
		sge:  make([]hca.SGE, cfg.Slots),
		join: coalesce.New(hca.Batch, false),
	}
	r.SetMTU(cfg.MTU)
	r.UseGIDs()
	return r, nil
}

// SetMTU sets the interface's MTU in bytes of IP packet. Longer packets are
// dropped and counted; the host would drop them silently.
func (r *Rx) SetMTU(mtu int) { r.mtu.Store(int32(mtu)) }

// UseLIDs makes Rx identify senders by their LIDs, which have lmc path bits (0 to 7), as on an InfiniBand port.
func (r *Rx) UseLIDs(lmc uint8) { r.lids.Store(&portLID{used: true, lmc: lmc}) }

// UseGIDs makes Rx identify senders by their GIDs, as on a RoCE port. It does so from the start.
func (r *Rx) UseGIDs() { r.lids.Store(&portLID{}) }

// Attach makes Rx receive from a queue of a QP and posts all receive buffers to it, so the
// QP must be in INIT or a later state. recvCQ is the queue's receive CQ. mr holds the
// buffers; it has at least Slots * RxStride(PortMTU, qp.Spec().LRO) bytes and is writable by
// the device (hca.AccessLocalWrite). The host accepts large TCP frames, and large UDP frames if
// qp.Spec().LROUDP is set. The generation must differ from every earlier one whose
// completions may still arrive. Errors: hca.ErrInvalid if a QP is already
// attached or if mr or the QP's receive queue is too small; or the error of a post, after
// which Rx is detached.
func (r *Rx) Attach(qp hca.Queue, recvCQ hca.CQ, mr hca.MR, generation uint32) error {
	if depth := qp.Spec().RecvWRs; r.qp != nil || depth < r.cfg.Slots {
		return fmt.Errorf("attach Rx with %d slots (attached already: %v) to QP %v with %d receives: %w",
			r.cfg.Slots, r.qp != nil, qp.Num(), depth, hca.ErrInvalid)
	}
	if err := r.ring.attach(mr, RxStride(r.cfg.PortMTU, qp.Spec().LRO), generation); err != nil {
		return err
	}
	for slot := range r.sge {
		r.sge[slot] = r.ring.sge(uint32(slot), 0, r.ring.stride)
	}
	if udp := qp.Spec().LROUDP; udp != r.joinsUDP {
		r.joinsUDP, r.join = udp, coalesce.New(hca.Batch, udp)
	}
	r.qp, r.cq = qp, recvCQ
	if err := r.Refill(); err != nil {
		r.Detach()
		return err
	}
	return nil
}

// Detach takes back every buffer and returns how many were posted. The QP must
// be in RESET or destroyed; after Detach Rx uses neither the QP, nor its CQ,
// nor the memory. Detach is idempotent.
func (r *Rx) Detach() int {
	n := r.ring.reset()
	r.qp, r.cq = nil, nil
	return n
}

// Refill posts every buffer that is not posted, including flushed ones. The
// owner calls it when the queue pair turns out to work after a flush; otherwise
// Pump posts buffers by itself.
func (r *Rx) Refill() error {
	if r.qp == nil {
		return ErrDetached
	}
	r.flushed, r.suspect = false, false
	return r.repost()
}

// Outstanding returns how many receives are posted.
func (r *Rx) Outstanding() int { return int(r.ring.stats.outstanding.Load()) }
