package endpoint

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
)

// slowPD takes a second for each address handle, like hardware whose peer is silent.
type slowPD struct {
	hca.PD
	made, closed chan struct{}
}

type slowAH struct {
	hca.AH
	pd *slowPD
}

func newSlowPD() *slowPD {
	return &slowPD{made: make(chan struct{}, maxAHRequests), closed: make(chan struct{}, maxAHRequests)}
}

func (p *slowPD) CreateAH(hca.AHSpec) (hca.AH, error) {
	time.Sleep(time.Second)
	p.made <- struct{}{}
	return &slowAH{pd: p}, nil
}

func (a *slowAH) Close() error {
	a.pd.closed <- struct{}{}
	return nil
}

// Requests are bounded. Close waits only for those under way, whether or not the results are
// received. Every handle is closed.
func TestAHWorkersEndInTime(t *testing.T) {
	for name, take := range map[string]int{"no results are received": 0, "some are received": 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pd := newSlowPD()
				w := newAHWorkers(pd)
				synctest.Wait()
				taken := uint64(0)
				for w.Create(taken+1, hca.AHSpec{}) {
					taken++
				}
				if taken < maxAHRequests || taken > maxAHRequests+ahWorkers {
					t.Errorf("%d requests taken", taken)
				}
				for range take {
					r := <-w.Results()
					w.Destroy([]hca.AH{r.AH})
				}
				start := time.Now()
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("the end took %s", took)
				}
				if len(pd.made) != len(pd.closed) {
					t.Errorf("%d handles made, %d closed", len(pd.made), len(pd.closed))
				}
			})
		})
	}
}
