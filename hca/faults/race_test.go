package faults_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// Faults may be injected while the data path runs; a reset then ends those that a reset can
// end.
func TestInjectUnderLoad(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		harmful := []faults.Kind{faults.CQOverrun, faults.CompletionsStop, faults.VerbHangs, faults.VerbHangsForever, faults.VerbEIO, faults.VerbENOMEM, faults.DeviceFatal, faults.Unplug}
		for range 500 {
			k := faults.Kind(rnd.IntN(int(faults.NumKind)))
			if !slices.Contains(harmful, k) {
				r.inject(faults.Fault{Kind: k, After: rnd.IntN(3), Count: rnd.IntN(3)})
			}
			_, _ = r.dev.Planned(), r.dev.Counters()
		}
		close(stop)
	})
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		r.churn()
	}
	wg.Wait()
	r.dev.Clear()
	r.reset()
	r.postRecv(2)
	r.postSend(2)
	r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok})
	r.wantStatuses(r.recv, 100, []hca.WCStatus{ok, ok})
	r.close()
}

// churn posts and polls, ignoring the results, and resets the QP if it has left RTS.
func (r *rig) churn() {
	_, _ = r.qp.PostRecv([]hca.RecvWR{{ID: 100, SGList: []hca.SGE{r.mr.SGE(0, rigSlot)}}})
	_, _ = r.qp.PostSend(r.sends(3))
	r.poll(r.send)
	r.poll(r.recv)
	if s := r.state(); s != hca.QPRTS && r.modify(s, hca.QPReset) == nil {
		r.up()
	}
}
