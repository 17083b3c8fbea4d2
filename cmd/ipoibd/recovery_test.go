package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/qprecovery"
)

// ill is the status of a daemon that has given up on its device. One interface waits for it, and
// another never had a failure.
func ill() report.Status {
	const ms = journal.Seconds(time.Millisecond)
	now := epoch
	past := report.RecoveryRecord{
		Rung: "rebuild_cq", Reason: "cq_error", Start: now.Add(-time.Hour), End: now.Add(-time.Hour),
		Duration: 4 * ms, Outage: 1005 * ms, Steps: []report.RecoveryStep{},
	}
	stopped := past
	stopped.Rung, stopped.Reason, stopped.Stopped = "reset_qp", "request_error", true
	open := report.RecoveryRecord{Rung: "reset_device", Reason: "device_reset", Start: now.Add(-time.Minute)}
	waiting, well, last := idle("ib0"), idle("ib1"), idle("ib2")
	waiting.State, waiting.Reason = "waiting", "device"
	waiting.Recovery = &report.Recovery{
		State: "detached", Rung: "reset_device", Reason: "device_reset", Since: open.Start, Outage: journal.Seconds(61 * time.Second), Recovered: 2,
		Rungs:   map[string]uint64{"reset_device": 1, "rebuild_cq": 2},
		Reasons: map[string]uint64{"device_reset": 1, "cq_error": 2},
		History: []report.RecoveryRecord{stopped, past, open},
	}
	last.Recovery = &report.Recovery{
		State: "healthy", Rung: "none", Reason: "none", Rungs: map[string]uint64{"reset_qp": 1},
		Reasons: map[string]uint64{"request_error": 1}, History: []report.RecoveryRecord{stopped},
	}
	soft := healthy("soft")
	soft.State, soft.Reason = "given_up", "gave_up"
	soft.Recovery = &report.Recovery{
		State: "given_up", Rung: "give_up", Reason: "gave_up", Since: now.Add(-time.Minute), Outage: journal.Seconds(time.Minute),
		Rungs: map[string]uint64{"wait_for_device": 1, "give_up": 1}, Reasons: map[string]uint64{"removed": 1, "gave_up": 1},
	}
	soft.Coordinator = &report.Coordinator{Phase: "idle", Members: []string{"ipoibd 7", "ipoibd 8"}}
	return report.Status{Time: now, Started: now, Devices: []report.Device{soft}, Interfaces: []report.Interface{waiting, well, last}}
}

func TestR29StatusTellsRungCauseOutageAndTheLastRecovery(t *testing.T) {
	text := printed(t, ill(), true)
	contains(t, text,
		"reason gave_up\nhint 'ipoibd recover' retries it\nrecovery give_up (given_up) because of gave_up, for 1m0s, outage 1m0s\ncoordinator reset idle; shared with ipoibd 7, ipoibd 8\n",
		"rungs wait_for_device 1, give_up 1\nreasons removed 1, gave_up 1\n",
		"recovery reset_device (detached) because of device_reset, for 1m0s, outage 1m1s\n",
		"recoveries 2\nlast outage 1.01s, recovered 1h0m0s ago by rebuild_cq because of cq_error, which took 4ms\nrungs rebuild_cq 2, reset_device 1\nreasons cq_error 2, device_reset 1\n",
		"recoveries 0\nlast outage 1.01s, stopped 1h0m0s ago by reset_qp because of request_error, which took 4ms\nrungs reset_qp 1\nreasons request_error 1\n")
	for what, want := range map[string]int{"\nrecovery ": 2, "\nlast outage ": 2, "\nrungs ": 3, "\nrecoveries ": 4} {
		if got := strings.Count(text, what); got != want {
			t.Errorf("%d times %q, want %d", got, what, want)
		}
	}
}

// noLocks is for the device of a test that needs no reset.
func noLocks([]qprecovery.Identity) (qprecovery.Resets, error) { return nil, errors.ErrUnsupported }

// A suspension is not a recovery, and caused no outage.
func TestR29SuspensionHasItsOwnWord(t *testing.T) {
	now := epoch.Add(-time.Minute - time.Second)
	d := qprecovery.NewDeviceLadder(now, qprecovery.DeviceConfig{Join: noLocks})
	d.Step(now, qprecovery.Listed{}, nil)
	d.Step(now, qprecovery.Opened{Op: 1}, nil)
	d.Step(now, qprecovery.Command{ID: 1, Do: qprecovery.DoSuspend}, nil)
	d.Step(now, qprecovery.Closed{Gen: 1}, nil)
	now = now.Add(time.Minute)
	d.Step(now, qprecovery.Command{ID: 2, Do: qprecovery.DoResume}, nil)
	d.Step(now, qprecovery.Opened{Op: 2}, nil)
	soft := healthy("soft")
	s := d.Status()
	soft.Recovery = report.NewRecovery(s.State, s.Rung, s.Reason, s.Counts, s.History, now)
	contains(t, printed(t, report.Status{Time: epoch, Devices: []report.Device{soft}}, false),
		"recoveries 0\nlast outage none; resumed 1s ago, was suspended for 1m0s\n")
}

// The next try and the end of the wait are shown, and an outage is never shorter than the
// recovery that it belongs to.
func TestR29StatusTellsWhatARecoveryWaitsFor(t *testing.T) {
	soft := healthy("soft")
	soft.Recovery = &report.Recovery{
		State: "waiting", Rung: "wait_for_device", Reason: "removed", Since: epoch.Add(-time.Second),
		Outage: journal.Seconds(990 * time.Millisecond), NextTry: epoch.Add(9 * time.Second), GivesUp: epoch.Add(10 * time.Minute),
	}
	s := report.Status{Time: epoch, Devices: []report.Device{soft}}
	contains(t, printed(t, s, false), "recovery wait_for_device (waiting) because of removed, for 1s, outage 1s; next try in 9s; gives up in 10m0s\n")
	soft.Recovery.State, soft.Recovery.GivesUp, soft.Recovery.NextTry = "pausing", time.Time{}, epoch.Add(-time.Millisecond)
	contains(t, printed(t, s, false), "outage 1s; next try in 0s\n")
}

func TestStatusShowsACoordinatorThatIsShared(t *testing.T) {
	for _, c := range []struct {
		coordinator *report.Coordinator
		want        string // "": no line
	}{
		{nil, ""},
		{&report.Coordinator{Phase: "idle"}, ""},
		{&report.Coordinator{Phase: "idle", Members: []string{"a", "b"}}, "reset idle; shared with a, b"},
		{&report.Coordinator{Phase: "pending", Leading: true, Members: []string{"a"}}, "reset pending, led by this daemon; shared with a"},
		{&report.Coordinator{Phase: "resetting", Leader: &report.Leader{PID: 7, Name: "ib0"}}, "reset resetting, led by process 7 ib0"},
		{&report.Coordinator{Phase: "idle", Trouble: "removed"}, "cannot reach other daemons: removed"},
		{
			&report.Coordinator{Phase: "pending", Leader: &report.Leader{PID: 7, SilentSince: epoch.Add(-time.Minute)}},
			"reset pending, led by process 7, which has made no progress since " + epoch.Add(-time.Minute).Local().Format(time.DateTime) + " (1m0s); the device cannot be reset without it",
		},
	} {
		soft := healthy("soft")
		soft.Coordinator = c.coordinator
		_, got, _ := strings.Cut(printed(t, report.Status{Time: epoch, Devices: []report.Device{soft}}, false), "coordinator ")
		if got, _, _ = strings.Cut(got, "\n"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.coordinator, got, c.want)
		}
	}
}

func TestR29StatusAsJSONHasAll(t *testing.T) {
	f := newFake()
	f.status = ill()
	path, _ := serve(t, f)
	out, _, err := ipoibd(t, "status", "--json", "--control", path)
	if err != nil {
		t.Fatal(err)
	}
	var got report.Status
	if err := json.Unmarshal([]byte(out), &got); err != nil || !reflect.DeepEqual(got, f.status) {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out, `"outage_seconds": 1.005`) {
		t.Error("no outage in seconds")
	}
	if out, _, err := ipoibd(t, "status", "--control", path); err != nil || !strings.Contains(out, "'ipoibd recover' retries it") {
		t.Errorf("for people: %v\n%s", err, out)
	}
}
