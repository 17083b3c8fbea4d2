package journal

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

var epoch = time.Unix(1e9, 0)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// record is one with steps at the times given, all of the reason qp_error.
func record(start, end int, rungs ...qprecovery.Rung) qprecovery.Record {
	r := qprecovery.Record{Reason: qprecovery.ReasonQPError, Start: at(start), Since: at(start - 1)}
	if end > 0 {
		r.End = at(end)
	}
	for i, rung := range rungs {
		r.Steps = append(r.Steps, qprecovery.Step{Rung: rung, Reason: qprecovery.ReasonQPError, At: at(start + i)})
	}
	return r
}

// lines are entries in short: "10ms rung reset_qp".
func lines(entries []Entry) (out []string) {
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%s %s %s", e.Time.Sub(epoch), e.Kind, e.Rung))
	}
	return out
}

// Each case is a history as it looks at each call, and what the journal has in
// the end.
func TestR29TrackerReportsEachStepAndEndOnce(t *testing.T) {
	const resume, reset, recreate = qprecovery.RungResumeQP, qprecovery.RungResetQP, qprecovery.RungRecreateQP
	type history = []qprecovery.Record
	for _, c := range []struct {
		name string
		see  []history
		want []string
	}{
		{"nothing", []history{nil, {}}, nil},
		{"a recovery as it goes", []history{
			{record(10, 0)},
			{record(10, 0, resume)},
			{record(10, 0, resume)},
			{record(10, 0, resume, reset)},
			{record(10, 20, resume, reset)},
			{record(10, 20, resume, reset)},
		}, []string{"10ms rung resume_qp", "11ms rung reset_qp", "20ms recovered reset_qp"}},
		{"all at once", []history{
			{record(10, 20, resume), record(30, 40, reset, recreate), record(50, 0, resume)},
		}, []string{
			"10ms rung resume_qp", "20ms recovered resume_qp", "30ms rung reset_qp", "31ms rung recreate_qp",
			"40ms recovered recreate_qp", "50ms rung resume_qp",
		}},
		{"one ends where the next begins", []history{
			{record(10, 0, resume)},
			{record(10, 20, resume), record(20, 0, reset)},
		}, []string{"10ms rung resume_qp", "20ms recovered resume_qp", "20ms rung reset_qp"}},
		{"several at the same time", []history{
			{record(10, 0, reset)},
			{record(10, 10, reset), record(10, 10, resume)},
			{record(10, 10, reset), record(10, 10, resume), record(10, 0, recreate)},
			{record(10, 10, reset), record(10, 10, resume), record(10, 12, recreate)},
		}, []string{
			"10ms rung reset_qp", "10ms recovered reset_qp", "10ms rung resume_qp", "10ms recovered resume_qp",
			"10ms rung recreate_qp", "12ms recovered recreate_qp",
		}},
		{"a query that found nothing", []history{
			{record(10, 0)},
			{},
			{record(10, 0, reset)},
			{record(10, 20, reset)},
		}, []string{"10ms rung reset_qp", "20ms recovered reset_qp"}},
		{"the oldest leaves the history", []history{
			{record(10, 20, resume), record(30, 40, reset)},
			{record(30, 40, reset), record(50, 60, recreate)},
		}, []string{
			"10ms rung resume_qp", "20ms recovered resume_qp", "30ms rung reset_qp", "40ms recovered reset_qp",
			"50ms rung recreate_qp", "60ms recovered recreate_qp",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := New()
			tr := NewTracker(j, "ib0")
			for _, h := range c.see {
				tr.Update(h)
			}
			if got := lines(j.Since(0)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestR29EndTellsDurationOutageReasonAndRequest(t *testing.T) {
	r := record(10, 25, qprecovery.RungResumeQP, qprecovery.RungRecreateQP)
	r.Since, r.Omitted = at(4), 3
	r.Request = &qprecovery.Request{
		Status: hca.WCLocProtErr, Opcode: hca.WCSend, WRID: 0x1f, VendorErr: 7,
		SGList: []hca.SGE{{Length: 58, LKey: 0xa}, {Length: 1400, LKey: 0xb}}, DestQPN: 0x22,
	}
	j := New()
	NewTracker(j, "ib0").Update([]qprecovery.Record{r})
	entries := j.Since(0)
	got := entries[len(entries)-1]
	want := Entry{
		Seq: 3, Time: at(25), Scope: "ib0", Kind: KindRecovered, Rung: "recreate_qp", Reason: "qp_error",
		Text:     hca.WCLocProtErr.String() + " of a send, wr_id 0x1f, vendor error 0x7, 58 bytes lkey 0xa, 1400 bytes lkey 0xb, to QP 0x000022; 3 more steps",
		Duration: 15 * time.Millisecond, Outage: 21 * time.Millisecond,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestStoppedIsNotRecovered(t *testing.T) {
	r := record(10, 20, qprecovery.RungResetQP)
	r.Stopped = true
	j := New()
	NewTracker(j, "ib0").Update([]qprecovery.Record{r})
	if got := lines(j.Since(0)); got[len(got)-1] != "20ms stopped reset_qp" {
		t.Errorf("%q", got)
	}
}

func TestBlameOfAReceive(t *testing.T) {
	got := Blame(qprecovery.Request{Status: hca.WCLocLenErr, Opcode: hca.WCRecv})
	if !strings.Contains(got, " of a receive") || strings.Contains(got, "to QP") {
		t.Error(got)
	}
}

// drive steps a ladder of an interface by random faults, answers and times,
// fewer than its history has room for, and calls after each.
func drive(t *rapid.T, after func(*qprecovery.Ladder)) {
	l := qprecovery.NewLadder(qprecovery.Config{})
	now := epoch
	l.Step(now, qprecovery.Attached{Gen: 1}, nil)
	op, gen := uint64(0), uint32(1)
	for range rapid.IntRange(0, qprecovery.MaxRecords).Draw(t, "steps") {
		now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 50, 2000}).Draw(t, "ms")) * time.Millisecond)
		for _, a := range l.Step(now, drawEvent(t, op, gen), nil) {
			switch a := a.(type) {
			case qprecovery.Query:
				op = a.Op
			case qprecovery.Run:
				op, gen = a.Op, a.Gen
			}
		}
		after(l)
	}
}

func drawEvent(t *rapid.T, op uint64, gen uint32) qprecovery.Event {
	class := rapid.SampledFrom([]qprecovery.Class{
		qprecovery.ClassSuccess, qprecovery.ClassFlushed, qprecovery.ClassRequestError, qprecovery.ClassStuck,
	}).Draw(t, "class")
	return rapid.SampledFrom([]qprecovery.Event{
		qprecovery.Done{Op: op, State: rapid.SampledFrom([]hca.QPState{hca.QPRTS, hca.QPSQE, hca.QPErr}).Draw(t, "state")},
		qprecovery.Done{Op: op, Class: class},
		qprecovery.Fault{Gen: gen, Class: class},
		qprecovery.Order{Rung: qprecovery.RungResetQP},
		qprecovery.Order{Rung: qprecovery.RungRebuildCQ},
		qprecovery.Tick{},
	}).Draw(t, "event")
}

// What the journal has of a ladder is what the ladder counted.
func TestR29JournalAgreesWithTheCounts(t *testing.T) {
	entered := 0
	rapid.Check(t, func(t *rapid.T) {
		j := New()
		tr := NewTracker(j, "ib0")
		var last *qprecovery.Ladder
		drive(t, func(l *qprecovery.Ladder) { tr.Update(l.History()); last = l })
		if last == nil {
			return
		}
		got := map[string]uint64{}
		for _, e := range j.Since(0) {
			got[e.Kind+" "+e.Rung]++
		}
		want := expected(last)
		for rung, n := range last.Counts().Rungs {
			entered += int(n)
			if name := "rung " + qprecovery.Rung(rung).String(); omitted(last) == 0 && got[name] != n {
				t.Fatalf("%s %d times, counted %d", name, got[name], n)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
	if entered == 0 {
		t.Error("no rung was ever entered")
	}
}

// expected counts what the history, which is whole, has to say.
func expected(l *qprecovery.Ladder) map[string]uint64 {
	want := map[string]uint64{}
	for _, r := range l.History() {
		for _, s := range r.Steps {
			want["rung "+s.Rung.String()]++
		}
		if !r.End.IsZero() {
			want["recovered "+r.Worst().String()]++
		}
	}
	return want
}

func omitted(l *qprecovery.Ladder) (n int) {
	for _, r := range l.History() {
		n += r.Omitted
	}
	return n
}
