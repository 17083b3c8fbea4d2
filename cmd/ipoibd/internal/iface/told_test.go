package iface

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// Each rung is reported when it is entered, even if there is nothing to do in it.
func TestR29RungsAreToldAtOnce(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		j := a.iface.rec.journal // set by New
		a.unplug()
		time.Sleep(qprecovery.DefaultGiveUpAfter)
		synctest.Wait()
		for _, want := range []string{"reset_device", "give_up"} {
			if got := j.Since(0); !slices.ContainsFunc(got, func(e journal.Entry) bool { return e.Rung == want }) {
				t.Errorf("no report of %s: %+v", want, got)
			}
		}
	})
}
