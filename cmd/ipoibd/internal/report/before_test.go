package report

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
)

// What another process has counted is added, also after it was sent to this one; gauges are not.
func TestTotals(t *testing.T) {
	old := Counters{"sent": {5, hca.CountTotal}, "drop": {2, hca.CountDrop}, "waiting": {9, hca.CountGauge}, "gone": {1, hca.CountError}}
	text, err := json.Marshal(TotalsOf(old))
	if err != nil {
		t.Fatal(err)
	}
	var before Totals
	if err := json.Unmarshal(text, &before); err != nil {
		t.Fatal(err)
	}
	now := Counters{"sent": {10, hca.CountTotal}, "drop": {1, hca.CountDrop}, "waiting": {4, hca.CountGauge}}
	now.AddTotals(before)
	want := Counters{"sent": {15, hca.CountTotal}, "drop": {3, hca.CountDrop}, "waiting": {4, hca.CountGauge}, "gone": {1, hca.CountError}}
	if !reflect.DeepEqual(now, want) || now.Drops() != 3 {
		t.Errorf("%v, want %v", now, want)
	}
}

func TestRecoveryAfter(t *testing.T) {
	durations := func(d ...time.Duration) *hca.Durations {
		x := new(hca.Durations)
		for _, one := range d {
			x.Observe(one)
		}
		return x
	}
	r := &Recovery{
		State: "healthy", Recovered: 1, Rungs: map[string]uint64{"reset_qp": 1}, Reasons: map[string]uint64{"event": 1}, OutageTotal: journal.Seconds(time.Second),
		Repairs: map[string]Histogram{"reset_qp": NewHistogram(durations(time.Millisecond))}, Stale: 1, History: make([]RecoveryRecord, 1),
	}
	if r.After(nil) != r {
		t.Error("a report has changed without another one before it")
	}
	before := &Recovery{
		State: "recovering", Recovered: 2, Rungs: map[string]uint64{"reset_qp": 3, "rebuild_cq": 1}, Reasons: map[string]uint64{"event": 4}, OutageTotal: journal.Seconds(2 * time.Second),
		Repairs: map[string]Histogram{"reset_qp": NewHistogram(durations(time.Millisecond, time.Second))}, FoundRTS: 7, History: make([]RecoveryRecord, maxHistory),
	}
	got := r.After(before)
	if got.State != "healthy" || got.Recovered != 3 || got.Rungs["reset_qp"] != 4 || got.Rungs["rebuild_cq"] != 1 || got.Reasons["event"] != 5 ||
		got.OutageTotal != journal.Seconds(3*time.Second) || got.FoundRTS != 7 || got.Stale != 1 || len(got.History) != maxHistory {
		t.Errorf("%+v", got)
	}
	if want := NewHistogram(durations(time.Millisecond, time.Millisecond, time.Second)); !reflect.DeepEqual(got.Repairs["reset_qp"], want) {
		t.Errorf("%v, want %v", got.Repairs["reset_qp"], want)
	}
	if len(r.History) != 1 || r.Rungs["reset_qp"] != 1 || len(before.Rungs) != 2 {
		t.Error("a report that others may read has changed")
	}
}
