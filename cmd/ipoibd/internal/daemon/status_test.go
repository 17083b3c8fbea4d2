package daemon

import (
	"reflect"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/coordinator"
	"ipoibd/qprecovery/reset"
)

// The host is among those who share the device, whoever looks.
func TestR16StatusNamesAllWhoShareADevice(t *testing.T) {
	silent := time.Unix(1e9, 0)
	got := coordinatorOf(coordinator.Status{
		Up: true, Host: coordinator.Host{PID: 7, Name: "ib0", Since: silent},
		Members: []reset.Member{{PID: 8, Name: "ib1"}, {Name: "ib2"}},
	})
	want := &control.Coordinator{
		Host: "the daemon that hosts the resets of the device, process 7 (ib0)", Phase: "idle",
		Members: []string{"ib0 (PID 7)", "ib1 (PID 8)", "ib2"}, Silent: silent,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
