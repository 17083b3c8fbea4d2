package hcatest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// Multi gives the QPs of any device several queues. It is a test double of a device that
// supports them itself. One QP of the device carries all queues of one QP of Multi. It
// receives messages into buffers of Multi, which copies each to a receive of the queue that
// [Multi.Steer] selects. A QP with one queue is the device's own. A QP with several queues joins
// no messages, whatever QPSpec.LRO is, because a receive of a queue may be shorter than a buffer.
type Multi struct {
	hca.Device
	// Steer returns the queue that receives a message, by its payload. Set it before the
	// first QP is created. nil means that the sender's QPN decides.
	Steer func(payload []byte) int

	queues int
}

var (
	_ hca.Device        = (*Multi)(nil)
	_ hca.WireReporter  = (*Multi)(nil)
	_ hca.StrayReporter = (*Multi)(nil)
	_ hca.QueueCreator  = (*multiPD)(nil)
)

// NewMulti returns a device with up to the given number of queues per QP, which then owns
// dev.
func NewMulti(dev hca.Device, queues int) *Multi { return &Multi{Device: dev, queues: queues} }

// Attr implements [hca.Device].
func (d *Multi) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.MaxQueues = d.queues
	return a
}

// WireBlocked implements [hca.WireReporter].
func (d *Multi) WireBlocked() uint64 { return hca.WireBlockedOf(d.Device) }

// Strays implements [hca.StrayReporter].
func (d *Multi) Strays() (hca.Strays, bool) { return hca.StraysOf(d.Device) }

// CreateCQ implements [hca.Device].
func (d *Multi) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	cq, err := d.Device.CreateCQ(spec)
	if err != nil {
		return nil, err
	}
	return &multiCQ{CQ: cq, dev: d}, nil
}

// AllocPD implements [hca.Device].
func (d *Multi) AllocPD() (hca.PD, error) {
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &multiPD{PD: pd, dev: d}, nil
}

// multiCQ is a CQ of the device, plus the completions of queues.
type multiCQ struct {
	hca.CQ
	dev *Multi

	mu    sync.Mutex
	users int // queues
	wcs   []hca.WC
	err   error // of the queues
}

func (c *multiCQ) Poll(wc []hca.WC) (int, error) {
	c.mu.Lock()
	n, err := copy(wc, c.wcs), c.err
	c.wcs = c.wcs[n:]
	c.mu.Unlock()
	if n > 0 || err != nil {
		return n, err
	}
	return c.CQ.Poll(wc)
}

func (c *multiCQ) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 0 {
		return &hca.VerbError{Verb: "destroy_cq", Err: hca.ErrBusy}
	}
	return c.CQ.Close()
}

// change runs f under the lock, and wakes the caller of Wait.
func (c *multiCQ) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.Wake()
}

func (c *multiCQ) purge(num hca.QPN) {
	c.wcs = slices.DeleteFunc(c.wcs, func(wc hca.WC) bool { return wc.QPN == num })
}

// multiPD is a PD of the device that knows the addresses of its memory.
type multiPD struct {
	hca.PD
	dev *Multi

	mu  sync.Mutex
	mrs []*multiMR
}

type multiMR struct {
	hca.MR
	pd *multiPD
}

func (p *multiPD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	mr, err := p.PD.AllocMR(size, access)
	if err != nil {
		return nil, err
	}
	m := &multiMR{mr, p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mrs = append(p.mrs, m)
	return m, nil
}

func (m *multiMR) Close() error {
	m.pd.mu.Lock()
	defer m.pd.mu.Unlock()
	m.pd.mrs = slices.DeleteFunc(m.pd.mrs, func(x *multiMR) bool { return x == m })
	return m.MR.Close()
}

// scatter copies a message to the memory of a list, and reports whether it fits.
func (p *multiPD) scatter(list []hca.SGE, msg []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sge := range list {
		for _, m := range p.mrs {
			first := m.SGE(0, len(m.Bytes()))
			if off := sge.Addr - first.Addr; first.LKey == sge.LKey && sge.Addr >= first.Addr && off+uint64(sge.Length) <= uint64(first.Length) {
				msg = msg[copy(m.Bytes()[off:off+uint64(sge.Length)], msg):]
			}
		}
	}
	return len(msg) == 0
}

// cqs returns the CQs of a pair if they belong to the device.
func (p *multiPD) own(pair hca.CQPair) (send, recv *multiCQ, err error) {
	send, okS := pair.Send.(*multiCQ)
	recv, okR := pair.Recv.(*multiCQ)
	if !okS || !okR || send.dev != p.dev || recv.dev != p.dev {
		return nil, nil, &hca.VerbError{Verb: "create_qp", Err: hca.ErrInvalid}
	}
	return send, recv, nil
}

func (p *multiPD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	send, recv, err := p.own(hca.CQPair{Send: sendCQ, Recv: recvCQ})
	if err != nil {
		return nil, err
	}
	return p.PD.CreateQP(spec, send.CQ, recv.CQ)
}

// bounceSize is the size of a buffer that receives any message.
const bounceSize = hca.GRHLen + int(hca.MaxMTU)

// CreateQueues implements [hca.QueueCreator].
func (p *multiPD) CreateQueues(spec hca.QPSpec, cqs []hca.CQPair) (hca.QP, []hca.Queue, error) {
	n := len(cqs)
	if n < 2 || n != spec.Queues || n > p.dev.queues || spec.LRO && !p.dev.Attr().LRO {
		return nil, nil, &hca.VerbError{Verb: "create_qp", Err: hca.ErrInvalid}
	}
	q := &multiQP{pd: p, spec: spec, sends: map[uint64]multiSend{}}
	for i, pair := range cqs {
		send, recv, err := p.own(pair)
		if err != nil {
			return nil, nil, err
		}
		q.queues = append(q.queues, &multiQueue{qp: q, index: i, sendCQ: send, recvCQ: recv})
	}
	if err := q.create(); err != nil {
		return nil, nil, errors.Join(err, q.closeHidden())
	}
	out := []hca.Queue{q}
	for _, x := range q.queues[1:] {
		out = append(out, x)
	}
	q.users(1)
	q.serving.Go(func() { q.serve(q.send, q.sent, func(x *multiQueue) *multiCQ { return x.sendCQ }) })
	q.serving.Go(func() { q.serve(q.recv, q.received, func(x *multiQueue) *multiCQ { return x.recvCQ }) })
	return q, out, nil
}

// multiQP is a QP with several queues. Its own posts go to the first one.
type multiQP struct {
	hca.QP
	pd         *multiPD
	spec       hca.QPSpec
	queues     []*multiQueue
	send, recv hca.CQ // of the device's QP
	bounce     hca.MR
	serving    sync.WaitGroup
	closed     atomic.Bool

	mu    sync.Mutex // guards the fields below, and the queues
	epoch uint32     // counts resets
	last  uint64     // ID of a send
	sends map[uint64]multiSend
	free  []int // buffers
	self  []int // queues of the messages that the QP has sent to itself, in order
}

type multiSend struct {
	queue    *multiQueue
	id       uint64
	signaled bool
	self     int // messages to the QP itself
}

// multiQueue is one queue of a multiQP.
type multiQueue struct {
	qp             *multiQP
	index          int
	sendCQ, recvCQ *multiCQ
	posted         int // sends
	recvs          []hca.RecvWR
}

func (q *multiQP) create() (err error) {
	n, d := q.spec.Queues, q.pd.dev.Device
	spec := hca.QPSpec{SendWRs: n * q.spec.SendWRs, RecvWRs: n * q.spec.RecvWRs, SendSGEs: q.spec.SendSGEs, RecvSGEs: 1, SignalAll: true, BlockLoopback: q.spec.BlockLoopback}
	if q.send, err = d.CreateCQ(hca.CQSpec{Entries: spec.SendWRs}); err != nil {
		return err
	}
	if q.recv, err = d.CreateCQ(hca.CQSpec{Entries: spec.RecvWRs}); err != nil {
		return err
	}
	if q.bounce, err = q.pd.PD.AllocMR(spec.RecvWRs*bounceSize, hca.AccessLocalWrite); err != nil {
		return err
	}
	q.dropPosted()
	q.QP, err = q.pd.PD.CreateQP(spec, q.send, q.recv)
	return err
}

// dropPosted drops all posted requests.
func (q *multiQP) dropPosted() {
	q.epoch++
	clear(q.sends)
	q.self, q.free = nil, q.free[:0]
	for i := range q.spec.Queues * q.spec.RecvWRs {
		q.free = append(q.free, i)
	}
	for _, x := range q.queues {
		x.posted, x.recvs = 0, nil
	}
}

func (q *multiQP) users(n int) {
	for _, x := range q.queues {
		for _, c := range []*multiCQ{x.sendCQ, x.recvCQ} {
			c.change(func() { c.users += n })
		}
	}
}

func (q *multiQP) Spec() hca.QPSpec                       { return q.spec }
func (q *multiQP) PostSend(wrs []hca.SendWR) (int, error) { return q.queues[0].PostSend(wrs) }
func (q *multiQP) PostRecv(wrs []hca.RecvWR) (int, error) { return q.queues[0].PostRecv(wrs) }

func (q *multiQP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	err := q.QP.Modify(attr, mask)
	if err == nil && mask&hca.AttrState != 0 && attr.State == hca.QPReset {
		q.purge()
	}
	return err
}

// purge drops all posted requests, and their completions.
func (q *multiQP) purge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropPosted()
	for _, x := range q.queues {
		for _, c := range []*multiCQ{x.sendCQ, x.recvCQ} {
			c.change(func() { c.purge(q.Num()) })
		}
	}
}

func (q *multiQP) Close() error {
	if err := q.QP.Close(); err != nil || q.closed.Swap(true) {
		return err
	}
	q.send.Wake()
	q.recv.Wake()
	q.serving.Wait()
	q.purge()
	q.users(-1)
	return q.closeHidden()
}

func (q *multiQP) closeHidden() error {
	var errs []error
	for _, cq := range []hca.CQ{q.send, q.recv} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if q.bounce != nil {
		errs = append(errs, q.bounce.Close())
	}
	return errors.Join(errs...)
}

// serve passes on the completions of one CQ of the device's QP until it fails or the QP is
// closed.
func (q *multiQP) serve(cq hca.CQ, each func(hca.WC), of func(*multiQueue) *multiCQ) {
	var wcs [hca.Batch]hca.WC
	for !q.closed.Load() {
		n, err := cq.Poll(wcs[:])
		if n == 0 && err == nil {
			if err = cq.Arm(); err == nil {
				n, err = cq.Poll(wcs[:])
			}
			if n == 0 && err == nil {
				err = cq.Wait(time.Time{})
			}
		}
		for _, wc := range wcs[:n] {
			each(wc)
		}
		if err != nil && !q.closed.Load() {
			for _, x := range q.queues {
				c := of(x)
				c.change(func() { c.err = err })
			}
			return
		}
	}
}

func (q *multiQP) sent(wc hca.WC) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, ok := q.sends[wc.ID]
	if !ok {
		return
	}
	delete(q.sends, wc.ID)
	s.queue.posted--
	if wc.Status != hca.WCSuccess { // no later send arrives either
		q.self = q.self[:max(0, len(q.self)-s.self)]
	}
	if wc.ID = s.id; s.signaled || wc.Status != hca.WCSuccess {
		s.queue.sendCQ.change(func() { s.queue.sendCQ.wcs = append(s.queue.sendCQ.wcs, wc) })
	}
}

func (q *multiQP) received(wc hca.WC) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if uint32(wc.ID>>32) != q.epoch {
		return
	}
	slot := int(uint32(wc.ID))
	q.free = append(q.free, slot)
	msg := q.bounce.Bytes()[slot*bounceSize:][:min(int(wc.ByteLen), bounceSize)]
	x := q.receiver(&wc, msg)
	if len(x.recvs) == 0 { // the queue has no receive, so the message is lost
		_ = q.postBounce()
		return
	}
	wr := x.recvs[0]
	x.recvs = x.recvs[1:]
	if wc.ID = wr.ID; wc.Status == hca.WCSuccess && !q.pd.scatter(wr.SGList, msg) {
		wc.Status = hca.WCLocLenErr
		_ = q.QP.Modify(hca.QPAttr{State: hca.QPErr}, hca.AttrState) // flushes the other receives
	}
	x.recvCQ.change(func() { x.recvCQ.wcs = append(x.recvCQ.wcs, wc) })
}

// receiver returns the queue for a completion. A completion with an error goes to any queue
// with a receive.
func (q *multiQP) receiver(wc *hca.WC, msg []byte) *multiQueue {
	i := 0
	switch {
	case wc.Status != hca.WCSuccess:
		i = max(0, slices.IndexFunc(q.queues, func(x *multiQueue) bool { return len(x.recvs) > 0 }))
	case wc.SrcQPN == q.Num() && len(q.self) > 0:
		i, q.self = q.self[0], q.self[1:]
	case q.pd.dev.Steer != nil:
		i = q.pd.dev.Steer(msg[hca.GRHLen:])
	default:
		i = int(wc.SrcQPN)
	}
	return q.queues[i%len(q.queues)]
}

// postBounce posts a buffer.
func (q *multiQP) postBounce() error {
	slot := q.free[len(q.free)-1]
	wr := hca.RecvWR{ID: uint64(q.epoch)<<32 | uint64(slot), SGList: []hca.SGE{q.bounce.SGE(slot*bounceSize, bounceSize)}}
	if _, err := q.QP.PostRecv([]hca.RecvWR{wr}); err != nil {
		return err
	}
	q.free = q.free[:len(q.free)-1]
	return nil
}

func (x *multiQueue) Num() hca.QPN     { return x.qp.Num() }
func (x *multiQueue) Spec() hca.QPSpec { return x.qp.spec }

func (x *multiQueue) PostSend(wrs []hca.SendWR) (int, error) {
	q := x.qp
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, wr := range wrs {
		if x.posted == q.spec.SendWRs {
			return i, hca.ErrQueueFull
		}
		q.last++
		s := multiSend{queue: x, id: wr.ID, signaled: q.spec.SignalAll || wr.Flags&hca.SendSignaled != 0}
		if wr.UD.QPN == q.Num() {
			s.self = messages(&wr)
		}
		wr.ID = q.last
		if _, err := q.QP.PostSend([]hca.SendWR{wr}); err != nil {
			return i, err
		}
		q.sends[q.last] = s
		x.posted++
		for range s.self {
			q.self = append(q.self, x.index)
		}
	}
	return len(wrs), nil
}

// messages returns the number of messages into which a send is cut.
func messages(wr *hca.SendWR) int {
	if wr.LSO.MSS == 0 {
		return 1
	}
	n := 0
	for _, sge := range wr.SGList {
		n += int(sge.Length)
	}
	return max(1, (n-1)/wr.LSO.MSS+1)
}

func (x *multiQueue) PostRecv(wrs []hca.RecvWR) (int, error) {
	q := x.qp
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, wr := range wrs {
		if len(x.recvs) == q.spec.RecvWRs {
			return i, hca.ErrQueueFull
		}
		if err := q.postBounce(); err != nil {
			return i, err
		}
		wr.SGList = slices.Clone(wr.SGList)
		x.recvs = append(x.recvs, wr)
	}
	return len(wrs), nil
}
