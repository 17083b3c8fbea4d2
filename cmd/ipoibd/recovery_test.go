package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// ill is a daemon whose device was given up, while one interface waits for it
// and another was never touched.
func ill(now time.Time) control.Status {
	const ms = journal.Seconds(time.Millisecond)
	past := control.RecoveryRecord{
		Rung: "rebuild_cq", Reason: "cq_error", Start: now.Add(-time.Hour), End: now.Add(-time.Hour),
		Duration: 4 * ms, Outage: 1005 * ms, Steps: []control.RecoveryStep{},
	}
	stopped := past
	stopped.Rung, stopped.Reason, stopped.Stopped = "reset_qp", "request_error", true
	open := control.RecoveryRecord{Rung: "reset_device", Reason: "device_reset", Start: now.Add(-time.Minute)}
	waiting := control.NewInterface("ib0", "soft")
	waiting.Recovery = &control.Recovery{
		State: "detached", Rung: "reset_device", Reason: "device_reset", Since: open.Start, Outage: journal.Seconds(61 * time.Second),
		Rungs:   map[string]uint64{"reset_device": 1, "rebuild_cq": 2},
		Reasons: map[string]uint64{"device_reset": 1, "cq_error": 2},
		History: []control.RecoveryRecord{stopped, past, open},
	}
	well := control.NewInterface("ib1", "soft")
	well.Recovery = &control.Recovery{State: "healthy", Rung: "none", Reason: "none"}
	last := control.NewInterface("ib2", "soft")
	last.Recovery = &control.Recovery{
		State: "healthy", Rung: "none", Reason: "none", Rungs: map[string]uint64{"reset_qp": 1},
		Reasons: map[string]uint64{"request_error": 1}, History: []control.RecoveryRecord{stopped},
	}
	return control.Status{
		Devices: []control.Device{{
			Name: "soft", State: "given up",
			Recovery: &control.Recovery{
				State: "given_up", Rung: "give_up", Reason: "gave_up", Since: now.Add(-time.Minute), Outage: journal.Seconds(time.Minute),
				Rungs: map[string]uint64{"wait_for_device": 1, "give_up": 1}, Reasons: map[string]uint64{"removed": 1, "gave_up": 1},
			},
			Coordinator: &control.Coordinator{Phase: "idle", Members: []string{"ipoibd 7", "ipoibd 8"}},
		}},
		Interfaces: []control.Interface{waiting, well, last},
	}
}

func TestR29StatusTellsRungCauseOutageAndTheLastRecovery(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := ill(now)
	var out strings.Builder
	if err := printStatus(&out, &s, now); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"device soft given up recovery give_up (given_up) because of gave_up, for 1m0s, outage 1m0s; 'ipoibd recover' starts again",
		"rungs wait_for_device 1, give_up 1 reasons removed 1, gave_up 1 coordinator reset idle; shared with ipoibd 7, ipoibd 8",
		"recovery reset_device (detached) because of device_reset, for 1m0s, outage 1m1s",
		"rungs rebuild_cq 2, reset_device 1 reasons cq_error 2, device_reset 1 last recovery healed 1h0m0s ago by rebuild_cq because of cq_error, took 4ms, outage 1.01s",
		"rungs reset_qp 1 reasons request_error 1 last recovery stopped 1h0m0s ago by reset_qp because of request_error",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if got := strings.Count(text, "recovery "); got != 4 {
		t.Errorf("%d recoveries under way or over, want 2 and 2", got)
	}
	if got := strings.Count(text, "rungs "); got != 3 {
		t.Errorf("%d lines of rungs, want 3", got)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// A suspension is no reset, and nothing was healed.
func TestR29SuspensionHasItsOwnWord(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := qprecovery.NewDeviceLadder(now, qprecovery.DeviceConfig{})
	d.Step(now, qprecovery.Tick{}, nil)
	d.Step(now, qprecovery.Opened{Op: 1}, nil)
	d.Step(now, qprecovery.Command{ID: 1, Do: qprecovery.DoSuspend}, nil)
	d.Step(now, qprecovery.Closed{Gen: 1}, nil)
	now = now.Add(time.Minute)
	d.Step(now, qprecovery.Command{ID: 2, Do: qprecovery.DoResume}, nil)
	d.Step(now, qprecovery.Opened{Op: 2}, nil)
	r := control.NewRecovery(d.State(), d.Rung(), d.Reason(), d.Counts(), d.History(), now)
	var out strings.Builder
	printRecovery(&out, r, now.Add(time.Second))
	want := "rungs suspend 1 reasons suspended 1 last recovery resumed 1s ago, was suspended for 1m0s"
	if got := strings.Join(strings.Fields(out.String()), " "); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// What is waited for is told with its times, and an outage is never shorter than
// the recovery that it belongs to.
func TestR29StatusTellsWhatARecoveryWaitsFor(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := &control.Recovery{
		State: "waiting", Rung: "wait_for_device", Reason: "removed", Since: now.Add(-time.Second),
		Outage: journal.Seconds(990 * time.Millisecond), NextTry: now.Add(9 * time.Second), GivesUp: now.Add(10 * time.Minute),
	}
	want := "wait_for_device (waiting) because of removed, for 1s, outage 1s; next try in 9s; gives up in 10m0s"
	if got := underWay(r, now); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	r.State, r.GivesUp, r.NextTry = "pausing", time.Time{}, now.Add(-time.Millisecond)
	if got := underWay(r, now); !strings.HasSuffix(got, "outage 1s; next try in 0s") {
		t.Errorf("overdue: %q", got)
	}
}

func TestStatusTellsOfACoordinatorThatIsShared(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		coordinator *control.Coordinator
		want        string // "": no line
	}{
		{nil, ""},
		{&control.Coordinator{Phase: "idle"}, ""},
		{&control.Coordinator{Phase: "idle", Members: []string{"a", "b"}}, "reset idle; shared with a, b"},
		{&control.Coordinator{Phase: "pending", Leading: true, Members: []string{"a"}}, "reset pending, led by this daemon; shared with a"},
		{&control.Coordinator{Phase: "resetting", Leader: "process 7"}, "reset resetting, led by process 7"},
		{&control.Coordinator{Phase: "idle", Trouble: "removed"}, "does not reach other daemons: removed"},
		{
			&control.Coordinator{Phase: "pending", Leader: "process 7", Silent: now.Add(-time.Minute)},
			"process 7, has not gone on since " + now.Add(-time.Minute).Format(time.TimeOnly) + " (1m0s); the device is not reset without it",
		},
	} {
		var out strings.Builder
		printDevice(&out, &control.Device{Name: "soft", Coordinator: c.coordinator}, now)
		_, got, _ := strings.Cut(out.String(), "coordinator\t")
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%+v: %q, want %q", c.coordinator, got, c.want)
		}
	}
}

func TestR29StatusAsJSONHasAll(t *testing.T) {
	f := newFake()
	f.status = ill(time.Unix(1e9, 0).UTC())
	path, _ := serve(t, f)
	out, _, err := ipoibd(t, "status", "--json", "--control", path)
	if err != nil {
		t.Fatal(err)
	}
	var got control.Status
	if err := json.Unmarshal([]byte(out), &got); err != nil || !reflect.DeepEqual(got, f.status) {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out, `"outage": 1.005`) {
		t.Error("no outage in seconds")
	}
	if out, _, err := ipoibd(t, "status", "--control", path); err != nil || !strings.Contains(out, "'ipoibd recover' starts again") {
		t.Errorf("for people: %v\n%s", err, out)
	}
}
