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
				ended := k == faults.PortUp // which ends another fault
				if !ended {
					want(1, "with a fault")
				}
				switch k { // it takes effect
				case faults.CQOverrun, faults.CompletionsStop, faults.DeafReceive, faults.SendErrorErr:
					r.postRecv(1)
					r.postSend(1)
					synctest.Wait()
					_, _ = r.send.Poll(make([]hca.WC, 1))
					_, _ = r.recv.Poll(make([]hca.WC, 1))
				case faults.PortDown, faults.DeviceFatal, faults.Unplug:
				default:
					r.dev.Clear()
					if k != faults.GIDChange && k != faults.PKeyChange {
						want(0, "without effects")
					}
					return
				}
				r.dev.Clear()
				switch k {
				case faults.SendErrorErr:
					want(0, "with a QP in ERR, which the device itself heeds")
				default:
					want(1, "with the effects of a fault")
				}
				switch k {
				case faults.DeafReceive, faults.SendErrorErr:
					r.reset()
					want(0, "after a reset of the QP")
				case faults.PortDown:
					r.inject(faults.Fault{Kind: faults.PortUp})
					want(0, "with the port up")
				}
			})
		})
	}
}
