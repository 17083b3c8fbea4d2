package iface

import (
	"context"
	"slices"
	"sync"
	"time"

	"ipoibd/hca"
)

// verbs makes a device slow, and makes it report events that the software HCA never
// reports.
type verbs struct {
	mu     sync.Mutex
	delays map[string]time.Duration // by the verb's name
	calls  map[string]int           // by the verb's name
	qp     hca.QP                   // created last
	broken *slowQP                  // its sends fail with the error below; nil: none
	sends  error
	last   *slowQP // created last
	events chan hca.AsyncEvent
}

func newVerbs() *verbs {
	return &verbs{delays: map[string]time.Duration{}, calls: map[string]int{}, events: make(chan hca.AsyncEvent, 1)}
}

// slow makes a verb take that long; 0: no time.
func (v *verbs) slow(verb string, d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.delays[verb] = d
}

// The errors with which a dead send queue refuses a send.
var (
	sendsFull    = hca.ErrQueueFull
	sendsRefused = hca.ErrInvalid
)

// breakSends makes the queue pair that was created last refuse every send with err.
func (v *verbs) breakSends(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.broken, v.sends = v.last, err
}

// qpEvent reports an event of the queue pair that was created last.
func (v *verbs) qpEvent(t hca.EventType) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events <- hca.AsyncEvent{Type: t, On: v.qp.ID()}
}

// count returns how often a verb was called.
func (v *verbs) count(verb string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls[verb]
}

func (v *verbs) pass(verb string) {
	v.mu.Lock()
	d := v.delays[verb]
	v.calls[verb]++
	v.mu.Unlock()
	time.Sleep(d)
}

func (v *verbs) wrap(dev hca.Device) hca.Device {
	if v == nil {
		return dev
	}
	return &slowDevice{dev, v}
}

type slowDevice struct {
	hca.Device
	verbs *verbs
}

func (d *slowDevice) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	type told struct {
		ev  hca.AsyncEvent
		err error
	}
	next := make(chan told, 1)
	go func() {
		ev, err := d.Device.NextEvent(inner)
		next <- told{ev, err}
	}()
	select {
	case ev := <-d.verbs.events:
		return ev, nil
	case n := <-next:
		return n.ev, n.err
	}
}

func (d *slowDevice) AllocPD() (hca.PD, error) {
	d.verbs.pass("alloc_pd")
	pd, err := d.Device.AllocPD()
	return &slowPD{pd, d.verbs}, err
}

func (d *slowDevice) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	d.verbs.pass("create_cq")
	return d.Device.CreateCQ(spec)
}

type slowPD struct {
	hca.PD
	verbs *verbs
}

func (p *slowPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	p.verbs.pass("create_qp")
	qp, err := p.PD.CreateQP(spec, send, recv)
	if err != nil {
		return nil, err
	}
	p.verbs.mu.Lock()
	defer p.verbs.mu.Unlock()
	p.verbs.qp, p.verbs.last = qp, &slowQP{qp, p.verbs}
	return p.verbs.last, nil
}

func (p *slowPD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	p.verbs.pass("create_ah")
	ah, err := p.PD.CreateAH(spec)
	if err != nil {
		return nil, err
	}
	return &slowAH{ah, p.verbs}, nil
}

type slowAH struct {
	hca.AH
	verbs *verbs
}

func (a *slowAH) Close() error {
	a.verbs.pass("destroy_ah")
	return a.AH.Close()
}

type slowQP struct {
	hca.QP
	verbs *verbs
}

func (q *slowQP) PostSend(wrs []hca.SendWR) (int, error) {
	q.verbs.mu.Lock()
	broken, err := q.verbs.broken == q, q.verbs.sends
	q.verbs.mu.Unlock()
	if broken {
		return 0, err
	}
	wrs = slices.Clone(wrs)
	for i := range wrs {
		if ah, ok := wrs[i].UD.AH.(*slowAH); ok {
			wrs[i].UD.AH = ah.AH
		}
	}
	return q.QP.PostSend(wrs)
}

func (q *slowQP) AttachMulticast(g hca.MulticastGroup) error {
	q.verbs.pass("attach_mcast")
	return q.QP.AttachMulticast(g)
}

func (q *slowQP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	q.verbs.pass("modify_qp")
	return q.QP.Modify(attr, mask)
}

func (q *slowQP) Query() (hca.QPAttr, error) {
	q.verbs.pass("query_qp")
	return q.QP.Query()
}

func (q *slowQP) Close() error {
	q.verbs.pass("destroy_qp")
	return q.QP.Close()
}
