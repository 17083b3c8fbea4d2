package faults

import (
	"slices"

	"ipoibd/hca"
)

// verbs are the verbs that can be made to hang. Those that release objects cannot be made to fail.
var verbs = []string{
	openDevice, "query_port", "alloc_pd", "dealloc_pd", "create_cq", "destroy_cq", "reg_mr", "create_ah",
	"create_qp", "destroy_qp", "modify_qp", "query_qp", "attach_mcast", "detach_mcast", "close_device",
	"post_send", "post_recv", "poll_cq",
}

// direct reports whether a verb must not block, and so hangs only if a fault names it.
func direct(verb string) bool { return verb == "post_send" || verb == "post_recv" || verb == "poll_cq" }

// Verbs returns the possible values of Fault.Verb, named as in libibverbs without the
// prefix.
func Verbs() []string { return slices.Clone(verbs) }

const openDevice = "open_device"

// enter starts a verb that allocates, changes or queries.
func (d *Device) enter(verb string) error {
	d.hang(verb)
	switch {
	case d.gone.Load(), d.fails(VerbEIO, verb):
		return wrap(verb, hca.ErrIO)
	case d.fails(VerbENOMEM, verb):
		return wrap(verb, hca.ErrNoMemory)
	}
	return nil
}

func (d *Device) fails(k Kind, verb string) bool {
	if !d.busy.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.recount()
	return d.plan.fire(k, verb)
}

// hang blocks the caller if a fault fires for the verb, until Release or forever. It returns
// whether it has blocked.
func (d *Device) hang(verb string) bool {
	if !d.busy.Load() {
		return false
	}
	d.mu.Lock()
	fired, hangs := d.plan.fire(VerbHangs, verb), (<-chan struct{})(d.hangs)
	if !fired {
		fired, hangs = d.plan.fire(VerbHangsForever, verb), d.opts.Forever
	}
	d.recount()
	d.mu.Unlock()
	if fired {
		<-hangs
	}
	return fired
}

func wrap(verb string, err error) error {
	return &hca.VerbError{Verb: verb, On: "by injected fault", Err: err}
}

// PD is a protection domain of a [Device].
type PD struct {
	hca.PD
	dev *Device
}

var (
	_ hca.PD           = (*PD)(nil)
	_ hca.QueueCreator = (*PD)(nil)
)

// AllocPD implements [hca.Device].
func (d *Device) AllocPD() (hca.PD, error) {
	if err := d.enter("alloc_pd"); err != nil {
		return nil, err
	}
	inner, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &PD{PD: inner, dev: d}, nil
}

// AllocMR implements [hca.PD].
func (p *PD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	if err := p.dev.enter("reg_mr"); err != nil {
		return nil, err
	}
	return p.PD.AllocMR(size, access)
}

// CreateAH implements [hca.PD].
func (p *PD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	if err := p.dev.enter("create_ah"); err != nil {
		return nil, err
	}
	return p.PD.CreateAH(spec)
}

// CreateQP implements [hca.PD].
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	qp, _, err := p.CreateQueues(spec, []hca.CQPair{{Send: sendCQ, Recv: recvCQ}})
	return qp, err
}

// CreateQueues implements [hca.QueueCreator].
func (p *PD) CreateQueues(spec hca.QPSpec, cqs []hca.CQPair) (hca.QP, []hca.Queue, error) {
	if err := p.dev.enter("create_qp"); err != nil {
		return nil, nil, err
	}
	var pairs []hca.CQPair // the backend's
	var own []*CQ
	for _, pair := range cqs {
		s, r := p.dev.own(pair.Send), p.dev.own(pair.Recv)
		if s == nil || r == nil {
			return nil, nil, &hca.VerbError{Verb: "create_qp", Err: hca.ErrInvalid}
		}
		pairs = append(pairs, hca.CQPair{Send: s.CQ, Recv: r.CQ})
		own = append(own, s, r)
	}
	if p.dev.busy.Load() && p.dev.fireOne(CreateQPFails) {
		return nil, nil, wrap("create_qp", hca.ErrNoMemory)
	}
	inner, queues, err := hca.CreateQueues(p.PD, spec, pairs)
	if err != nil {
		return nil, nil, err
	}
	q := &QP{QP: inner, dev: p.dev, sendCQ: own[0], cqs: own}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.dev.qps[inner.Num()] = q
	for i := range queues {
		queues[i] = &queue{queues[i], p.dev}
	}
	queues[0] = q
	return q, queues, nil
}

// own returns cq if it belongs to this device, else nil.
func (d *Device) own(cq hca.CQ) *CQ {
	if c, ok := cq.(*CQ); ok && c.dev == d {
		return c
	}
	return nil
}

// Close implements [hca.PD].
func (p *PD) Close() error {
	p.dev.hang("dealloc_pd")
	return p.PD.Close()
}
