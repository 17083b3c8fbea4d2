package iface

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/ud/ipoib"
)

// The report of a failed work request has everything that may explain the failure.
func TestR03RequestIsDescribed(t *testing.T) {
	const size = 100
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.inject(faults.Fault{Kind: faults.SendErrorErr})
		mac, _ := a.neighbour(b.ip)
		a.sendIP(mac, b.ip, size, 1)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		history := a.status().Recovery.History
		if len(history) != 1 {
			t.Fatalf("history %+v", history)
		}
		got := history[0].Request
		if !strings.HasPrefix(got, "LOC_PROT_ERR of a send, wr_id ") || !strings.Contains(got, " lkey 0x") {
			t.Errorf("%q", got)
		}
		for _, want := range []string{fmt.Sprintf(", %d bytes", size+ipoib.HeaderLen), ", to QP " + b.status().QP.QPN.String()} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in %q", want, got)
			}
		}
	})
}
