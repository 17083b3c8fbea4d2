package report

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// ladder is a ladder of an interface and the time it is at.
type ladder struct {
	*qprecovery.Ladder
	now time.Time
}

func newLadder() *ladder {
	l := &ladder{&qprecovery.Ladder{}, time.Unix(1e9, 0).UTC()}
	l.step(0, qprecovery.Attached{Gen: 1})
	return l
}

// step lets time pass, then takes an event; it returns the number of the last
// operation that this asks for.
func (l *ladder) step(pass time.Duration, ev qprecovery.Event) (op uint64) {
	l.now = l.now.Add(pass)
	for _, a := range l.Step(l.now, ev, nil) {
		switch a := a.(type) {
		case qprecovery.Query:
			op = a.Op
		case qprecovery.Run:
			op = a.Op
		}
	}
	return op
}

func (l *ladder) recovery() *Recovery {
	return NewRecovery(l.State(), l.State().Rung(), l.Reason(), l.Counts(), l.History(), l.now)
}

func TestR29RecoveryOfAHealthyLadder(t *testing.T) {
	want := &Recovery{State: "healthy", Rung: "none", Reason: "none", Rungs: map[string]uint64{}, Reasons: map[string]uint64{}, Repairs: map[string]Histogram{}, History: []RecoveryRecord{}}
	got := newLadder().recovery()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, absent := range []string{"null", `"since"`, `"outage_seconds"`} {
		if strings.Contains(string(text), absent) {
			t.Errorf("%q in %s", absent, text)
		}
	}
}

// A request fails, the reset in place fails, and the queue pair is recreated: the status
// during the recovery, and after it.
func TestR29RecoveryOnItsWayAndAfter(t *testing.T) {
	const ms = time.Millisecond
	l := newLadder()
	began := l.now.Add(time.Second)
	query := l.step(time.Second, qprecovery.Fault{
		Gen: 1, Class: qprecovery.ClassRequestError, Since: began.Add(-10 * ms),
		Request: &qprecovery.Request{Status: hca.WCLocProtErr, DestQPN: 0x22},
	})
	run := l.step(1*ms, qprecovery.Done{Op: query, State: hca.QPErr})
	run = l.step(2*ms, qprecovery.Done{Op: run, Class: qprecovery.ClassRefused})
	l.now = l.now.Add(4 * ms)

	got := l.recovery()
	if got.Rung != "recreate_qp" || got.Reason != "verb_failed" || !got.Since.Equal(began) || got.Outage != journal.Seconds(17*ms) {
		t.Errorf("on its way: %+v", got)
	}
	steps := []RecoveryStep{{"reset_qp", "request_error", began.Add(1 * ms)}, {"recreate_qp", "verb_failed", began.Add(3 * ms)}}
	record := RecoveryRecord{
		Rung: "recreate_qp", Reason: "request_error", Start: began,
		Duration: journal.Seconds(7 * ms), Outage: journal.Seconds(17 * ms), Steps: steps,
		Request: "LOC_PROT_ERR of a send, wr_id 0x0, vendor error 0x0, to QP 0x000022",
	}
	if !reflect.DeepEqual(got.History, []RecoveryRecord{record}) {
		t.Errorf("on its way: %+v\nwant %+v", got.History, record)
	}

	l.step(0, qprecovery.Done{Op: run})
	record.End = l.now
	l.now = l.now.Add(time.Hour)
	got = l.recovery()
	if got.State != "healthy" || !got.Since.IsZero() || got.Outage != 0 || !reflect.DeepEqual(got.History, []RecoveryRecord{record}) {
		t.Errorf("after: %+v", got)
	}
	if want := map[string]uint64{"reset_qp": 1, "recreate_qp": 1}; !reflect.DeepEqual(got.Rungs, want) {
		t.Errorf("rungs %v, want %v", got.Rungs, want)
	}
	if want := map[string]uint64{"request_error": 1, "verb_failed": 1}; !reflect.DeepEqual(got.Reasons, want) {
		t.Errorf("reasons %v, want %v", got.Reasons, want)
	}
	if h := got.Repairs["recreate_qp"]; len(got.Repairs) != 1 || h.Count != 1 || h.Sum != journal.Seconds(7*ms) || got.OutageTotal != journal.Seconds(17*ms) {
		t.Errorf("repairs %+v, outage %s; want one of 7 ms by recreate_qp, and 17 ms", got.Repairs, got.OutageTotal)
	}
}

func TestR29RecoveryCountsWhatAskedForNothing(t *testing.T) {
	l := newLadder()
	l.step(0, qprecovery.Fault{Gen: 9, Class: qprecovery.ClassCQError})
	l.step(0, qprecovery.Fault{Gen: 1, Class: qprecovery.ClassQueueFull})
	l.step(0, qprecovery.Order{Rung: qprecovery.RungRebuildCQ})
	l.step(0, qprecovery.Stopped{})
	got := l.recovery()
	if got.Stale != 1 || got.Absorbed != 1 {
		t.Errorf("stale %d, absorbed %d, want 1 and 1", got.Stale, got.Absorbed)
	}
	if len(got.History) != 1 || !got.History[0].Stopped || got.History[0].Reason != "operator" {
		t.Errorf("%+v", got.History)
	}
}

// noLocks is for the device of a test that needs no reset.
func noLocks([]qprecovery.Identity) (qprecovery.Resets, error) { return nil, errors.ErrUnsupported }

// openDevice returns the ladder of a device that is open.
func openDevice(now time.Time) *qprecovery.DeviceLadder {
	d := qprecovery.NewDeviceLadder(now, qprecovery.DeviceConfig{Join: noLocks})
	d.Step(now, qprecovery.Listed{Devices: []qprecovery.Identity{{Name: "mlx5_0"}}}, nil)
	d.Step(now, qprecovery.Opened{Op: 1, Identity: qprecovery.Identity{Name: "mlx5_0"}}, nil)
	return d
}

func ofDevice(d *qprecovery.DeviceLadder, now time.Time) *Recovery {
	s := d.Status()
	return NewRecovery(s.State, s.Rung, s.Reason, s.Counts, s.History, now)
}

// Both ladders fit.
func TestR29RecoveryOfADevice(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := openDevice(now)
	d.Step(now, qprecovery.Listed{}, nil)
	got := ofDevice(d, now.Add(time.Second))
	if got.State != "dropping" || got.Rung != "wait_for_device" || got.Reason != "removed" || got.Outage != journal.Seconds(time.Second) {
		t.Errorf("%+v", got)
	}
}

// Why a device is waited for does not change with a try that fails.
func TestR29RecoveryTellsWhyTheDeviceIsWaitedFor(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := openDevice(now)
	d.Step(now, qprecovery.Listed{}, nil)
	d.Step(now, qprecovery.Closed{Gen: 1}, nil)
	d.Step(now, qprecovery.Listed{Devices: []qprecovery.Identity{{Name: "mlx5_0"}}}, nil)
	d.Step(now, qprecovery.Opened{Op: 2, Class: qprecovery.ClassRefused}, nil)
	if s := d.Status(); s.State != qprecovery.DeviceWaiting || s.Reason != qprecovery.ReasonRefused {
		t.Fatalf("%v because of %v", s.State, s.Reason)
	}
	got := ofDevice(d, now)
	if got.Rung != "wait_for_device" || got.Reason != "removed" {
		t.Errorf("%s because of %s", got.Rung, got.Reason)
	}
}

// docs/recovery.md explains each state that a status may show.
func TestStatesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/recovery.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| state | of | what happens |")
	table, _, _ = strings.Cut(table, "\n\n")
	check := func(of, state string) {
		for row := range strings.Lines(table) {
			if cells := strings.Split(row, "|"); len(cells) > 2 && strings.Contains(cells[1], "`"+state+"`") && (strings.Contains(cells[2], of) || cells[2] == " both ") {
				return
			}
		}
		t.Errorf("docs/recovery.md does not explain the state %s of an %s", state, of)
	}
	for s := qprecovery.DeviceState(0); s.String() != "unknown"; s++ {
		check("device", s.String())
	}
	for s := qprecovery.State(0); s.String() != "unknown"; s++ {
		check("interface", s.String())
	}
}

func TestR29RecoveryRoundTrip(t *testing.T) {
	l := newLadder()
	l.step(0, qprecovery.Order{Rung: qprecovery.RungRebuildCQ})
	l.now = l.now.Add(1234567)
	want := l.recovery()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Recovery
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(&got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}
