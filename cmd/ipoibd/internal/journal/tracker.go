package journal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Tracker turns the history of one ladder into entries, each once. It belongs to
// the ladder's goroutine.
type Tracker struct {
	journal *Journal
	scope   string
	// What is reported already. Of recoveries only the start tells one from
	// another, and several may have the same.
	start time.Time // of the last one looked at
	ended int       // of that start: reported to their end
	steps int       // of the next one of that start: steps reported
}

// NewTracker returns the tracker of the ladder of scope, the name of its
// interface or device.
func NewTracker(j *Journal, scope string) *Tracker { return &Tracker{journal: j, scope: scope} }

// Update reports what is new in the ladder's history. It wants to be called
// after each Step, so that nothing has left the history unseen.
func (t *Tracker) Update(records []qprecovery.Record) {
	for _, r := range t.open(records) {
		t.report(r)
	}
}

// open returns the records that are not reported to their end.
func (t *Tracker) open(records []qprecovery.Record) []qprecovery.Record {
	i := slices.IndexFunc(records, func(r qprecovery.Record) bool { return !r.Start.Before(t.start) })
	if i < 0 {
		return nil
	}
	if records[i].Start.Equal(t.start) {
		i += t.ended
	}
	return records[min(i, len(records)):]
}

func (t *Tracker) report(r qprecovery.Record) {
	if !r.Start.Equal(t.start) {
		t.start, t.ended, t.steps = r.Start, 0, 0
	}
	for _, s := range r.Steps[min(t.steps, len(r.Steps)):] {
		t.journal.Add(Entry{Time: s.At, Scope: t.scope, Kind: KindRung, Rung: s.Rung.String(), Reason: s.Reason.String()})
	}
	t.steps = len(r.Steps)
	if !r.End.IsZero() {
		t.journal.Add(End(t.scope, r))
		t.ended, t.steps = t.ended+1, 0
	}
}

// End is the entry of the end of a recovery of scope, the name of an interface or a
// device.
func End(scope string, r qprecovery.Record) Entry {
	e := Entry{
		Time: r.End, Scope: scope, Kind: KindRecovered,
		Rung: r.Worst().String(), Reason: r.Reason.String(), Text: summary(r),
		Duration: r.Duration(), Outage: r.Outage(),
	}
	if r.Stopped {
		e.Kind = KindStopped
	}
	return e
}

// summary names the request to blame, and the steps that were not kept.
func summary(r qprecovery.Record) string {
	var parts []string
	if r.Request != nil {
		parts = append(parts, Blame(*r.Request))
	}
	if r.Omitted > 0 {
		parts = append(parts, fmt.Sprintf("%d more steps", r.Omitted))
	}
	return strings.Join(parts, "; ")
}

// Blame describes a failed work request in a line (R3).
func Blame(q qprecovery.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of a %s, wr_id 0x%x, vendor error 0x%x", q.Status, opcode(q.Opcode), q.WRID, q.VendorErr)
	for _, s := range q.SGList {
		fmt.Fprintf(&b, ", %d bytes lkey 0x%x", s.Length, s.LKey)
	}
	if q.DestQPN != 0 {
		fmt.Fprintf(&b, ", to QP %s", q.DestQPN)
	}
	return b.String()
}

func opcode(o hca.WCOpcode) string {
	if o == hca.WCRecv {
		return "receive"
	}
	return "send"
}
