package device

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/qprecovery/reset"
)

// The status names who shares the device, who leads a reset of it, and why others
// are not reached.
func TestR16StatusNamesAllWhoShareADevice(t *testing.T) {
	silent := time.Unix(1e9, 0)
	got := coordinator(Status{
		Coordinator: resetlock.Status{
			Shared: true, State: reset.StateWaiting, Intent: reset.Record{Phase: reset.PhaseResetting},
			Leader: resetlock.Process{PID: 7, Name: "ib0", Since: silent}, Err: errors.New("removed"),
		},
		Sharers: []string{"ipoibd (pid 7)"},
	})
	want := &report.Coordinator{
		Phase: "resetting", Leader: &report.Leader{PID: 7, Name: "ib0", SilentSince: silent}, Members: []string{"ipoibd (pid 7)"}, Trouble: "removed",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := coordinator(Status{}); got != nil {
		t.Errorf("not shared: %+v", got)
	}
}
