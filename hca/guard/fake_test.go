package guard_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"ipoibd/hca"
)

// fake is a backend under the control of a test: verbs hang on command, and the test supplies
// completions and events.
type fake struct {
	mu          sync.Mutex
	hangs       map[string]chan struct{}
	errs        map[string]error
	closed      []string // objects, in the order of their release
	events      chan hca.AsyncEvent
	stuckEvents bool // NextEvent ignores its context
	neverBlocks bool
	callers     map[string]string // the goroutine that called each verb last
}

func newFake() *fake {
	return &fake{
		hangs: map[string]chan struct{}{}, errs: map[string]error{}, callers: map[string]string{},
		events: make(chan hca.AsyncEvent, 16),
	}
}

// stick makes a verb hang until the returned function is called.
func (f *fake) stick(verb string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{})
	f.hangs[verb] = ch
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.hangs, verb)
		close(ch)
	}
}

// unstick lets later calls of a verb return. Calls that hang already continue to hang.
func (f *fake) unstick(verb string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.hangs, verb)
}

func (f *fake) fail(verb string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[verb] = err
}

func (f *fake) enter(verb string) error {
	f.mu.Lock()
	f.callers[verb] = goroutine()
	ch, err := f.hangs[verb], f.errs[verb]
	f.mu.Unlock()
	if ch != nil {
		<-ch
	}
	return err
}

// goroutine returns the number of the caller's goroutine.
func goroutine() string {
	text := make([]byte, 64)
	return strings.Fields(string(text[:runtime.Stack(text, false)]))[1]
}

// release is the implementation of a verb that releases the object name.
func (f *fake) release(verb, name string) error {
	if err := f.enter(verb); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = append(f.closed, name)
	return nil
}

func (f *fake) released() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.closed...)
}

func (f *fake) Attr() hca.DeviceAttr {
	return hca.DeviceAttr{Name: "fake", Ports: 1, Transport: hca.TransportSoftware, NeverBlocks: f.neverBlocks}
}

func (f *fake) QueryPort(uint8) (hca.PortAttr, error) {
	return hca.PortAttr{State: hca.PortActive}, f.enter("query_port")
}

func (f *fake) AllocPD() (hca.PD, error) {
	if err := f.enter("alloc_pd"); err != nil {
		return nil, err
	}
	return &fakePD{f}, nil
}

func (f *fake) CreateCQ(hca.CQSpec) (hca.CQ, error) {
	if err := f.enter("create_cq"); err != nil {
		return nil, err
	}
	return &fakeCQ{fake: f, wake: make(chan struct{}, 1)}, nil
}

func (f *fake) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	done := ctx.Done()
	if f.stuckEvents {
		done = nil
	}
	select {
	case ev := <-f.events:
		return ev, nil
	case <-done:
		return hca.AsyncEvent{}, ctx.Err()
	}
}

func (f *fake) Counters() []hca.Counter { return nil }
func (f *fake) Close() error            { return f.release("close_device", "device") }

type fakePD struct{ *fake }

func (p *fakePD) AllocMR(size int, _ hca.Access) (hca.MR, error) {
	if err := p.enter("reg_mr"); err != nil {
		return nil, err
	}
	return &fakeMR{p.fake, make([]byte, size)}, nil
}

func (p *fakePD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	if err := p.enter("create_ah"); err != nil {
		return nil, err
	}
	return &fakeAH{p.fake, spec}, nil
}

func (p *fakePD) CreateQP(spec hca.QPSpec, _, _ hca.CQ) (hca.QP, error) {
	if err := p.enter("create_qp"); err != nil {
		return nil, err
	}
	return &fakeQP{fake: p.fake, spec: spec, takes: 1 << 30}, nil
}

func (p *fakePD) Close() error { return p.release("dealloc_pd", "PD") }

type fakeMR struct {
	*fake
	b []byte
}

func (m *fakeMR) Bytes() []byte        { return m.b }
func (m *fakeMR) SGE(_, n int) hca.SGE { return hca.SGE{Length: uint32(n)} }
func (m *fakeMR) Close() error         { return m.release("dereg_mr", "MR") }

type fakeAH struct {
	*fake
	spec hca.AHSpec
}

func (a *fakeAH) Spec() hca.AHSpec { return a.spec }
func (a *fakeAH) Close() error     { return a.release("destroy_ah", "AH") }

// fakeCQ delivers the completions that a test puts into wcs.
type fakeCQ struct {
	*fake
	wcs  []hca.WC
	wake chan struct{}
}

func (c *fakeCQ) ID() hca.ObjectID { return hca.ObjectID{Kind: hca.KindCQ, Num: 1, Generation: 1} }

func (c *fakeCQ) Poll(wc []hca.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	return n, c.errs["poll_cq"]
}

func (c *fakeCQ) put(wcs ...hca.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wcs...)
}

func (c *fakeCQ) Arm() error { return nil }

func (c *fakeCQ) Wait(until time.Time) error {
	var alarm <-chan time.Time
	if !until.IsZero() {
		alarm = time.After(time.Until(until))
	}
	select {
	case <-c.wake:
	case <-alarm:
	}
	return nil
}

func (c *fakeCQ) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *fakeCQ) Close() error { return c.release("destroy_cq", "CQ") }

// fakeQP accepts as many requests as takes, then returns the error of the verb, or
// ErrInvalid.
type fakeQP struct {
	*fake
	spec  hca.QPSpec
	takes int
}

const fakeQPN = 0x11

func (q *fakeQP) ID() hca.ObjectID {
	return hca.ObjectID{Kind: hca.KindQP, Num: fakeQPN, Generation: 2}
}
func (q *fakeQP) Num() hca.QPN     { return fakeQPN }
func (q *fakeQP) Spec() hca.QPSpec { return q.spec }

func (q *fakeQP) Modify(hca.QPAttr, hca.QPAttrMask) error { return q.enter("modify_qp") }
func (q *fakeQP) Query() (hca.QPAttr, error)              { return hca.QPAttr{}, q.enter("query_qp") }

func (q *fakeQP) PostSend(wrs []hca.SendWR) (int, error) { return q.post("post_send", len(wrs)) }
func (q *fakeQP) PostRecv(wrs []hca.RecvWR) (int, error) { return q.post("post_recv", len(wrs)) }

func (q *fakeQP) post(verb string, n int) (int, error) {
	err := q.enter(verb)
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := min(n, q.takes)
	q.takes -= taken
	if taken < n && err == nil {
		err = hca.ErrInvalid
	}
	return taken, err
}

func (q *fakeQP) AttachMulticast(hca.MulticastGroup) error { return q.enter("attach_mcast") }
func (q *fakeQP) DetachMulticast(hca.MulticastGroup) error { return q.enter("detach_mcast") }
func (q *fakeQP) Close() error                             { return q.release("destroy_qp", "QP") }
