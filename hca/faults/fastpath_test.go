package faults_test

import (
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
)

// fastDevice is a device whose QPs have a fast path that counts how often it is held.
type fastDevice struct {
	hca.Device
	held int
}

func (d *fastDevice) AllocPD() (hca.PD, error) {
	pd, err := d.Device.AllocPD()
	return &fastPD{pd, d}, err
}

type fastPD struct {
	hca.PD
	dev *fastDevice
}

func (p *fastPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	qp, err := p.PD.CreateQP(spec, send, recv)
	return &fastQP{qp, p.dev}, err
}

type fastQP struct {
	hca.QP
	dev *fastDevice
}

func (q *fastQP) CreateFastPath(hca.FastPathSpec) (hca.FastPath, error) {
	return &countedPath{dev: q.dev}, nil
}

type countedPath struct {
	hca.FastPath
	dev *fastDevice
}

func (p *countedPath) Hold()    { p.dev.held++ }
func (p *countedPath) Release() { p.dev.held-- }

// effects are the faults that have effects when they fire: how often the fast path is then held, what causes the effects unless
// the fault fires at once, and what ends them; nil: nothing.
var effects = map[faults.Kind]struct {
	held          int
	cause, repair func(r *rig)
}{
	faults.CQOverrun:       {1, exchange, nil},
	faults.CompletionsStop: {1, exchange, nil},
	faults.DeafReceive:     {1, exchange, (*rig).reset},
	faults.SendErrorErr:    {0, exchange, (*rig).reset}, // the device itself heeds a QP in ERR
	faults.DeviceFatal:     {1, nil, nil},
	faults.Unplug:          {1, nil, nil},
	faults.PortDown:        {1, nil, func(r *rig) { r.inject(faults.Fault{Kind: faults.PortUp}) }},
	faults.GIDChange:       {1, nil, func(r *rig) { r.inject(faults.Fault{Kind: faults.GIDChange}) }},
	faults.PKeyChange:      {1, nil, func(r *rig) { r.inject(faults.Fault{Kind: faults.PKeyChange}) }},
}

// exchange sends a message to the rig itself, and polls its completions.
func exchange(r *rig) {
	r.postRecv(1)
	r.postSend(1)
	synctest.Wait()
	_, _ = r.send.Poll(make([]hca.WC, 1))
	_, _ = r.recv.Poll(make([]hca.WC, 1))
}

// While a fault is planned, or has effects, nothing passes it by on the fast path.
func TestFaultsHoldTheFastPath(t *testing.T) {
	for _, k := range faults.Kinds() {
		t.Run(k.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, _ := openSoft(t, memfabric.New(1), "a", rigAddr)
				below := &fastDevice{Device: dev}
				r := rigOn(t, below)
				defer r.close()
				have(hca.CreateFastPath(r.qp, hca.FastPathSpec{}))(t)
				want := func(held int, when string) {
					t.Helper()
					if below.held != held {
						t.Errorf("%s: held %d times, want %d", when, below.held, held)
					}
				}
				want(0, "without faults")
				r.inject(faults.Fault{Kind: k, After: 5})
				want(1, "with a fault to come")
				r.dev.Clear()
				want(0, "after it was withdrawn")
				r.inject(faults.Fault{Kind: k})
				if k != faults.PortUp { // which ends another fault
					want(1, "with a fault")
				}
				r.dev.Clear()
				c := effects[k]
				if c.cause != nil {
					r.inject(faults.Fault{Kind: k})
					c.cause(r)
					r.dev.Clear()
				}
				want(c.held, "with the effects of the fault")
				if c.repair != nil {
					c.repair(r)
					want(0, "after they were repaired")
				}
			})
		})
	}
}
