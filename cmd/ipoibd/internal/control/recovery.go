package control

import (
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// Recovery is what the ladder of an interface or a device has done. Rungs and
// reasons have the names of qprecovery.
type Recovery struct {
	State  string `json:"state"`
	Rung   string `json:"rung"`   // the present one; "none" in health
	Reason string `json:"reason"` // why that rung was entered; in health, why the state was
	// Since is when the recovery under way began, Outage how long service has
	// been missing; both absent when there is none.
	Since  time.Time       `json:"since,omitzero"`
	Outage journal.Seconds `json:"outage,omitzero"`
	// NextTry is when a pause of the device ends, or it is looked for again, GivesUp
	// when the wait for it ends; absent where there is no such thing.
	NextTry time.Time `json:"next_try,omitzero"`
	GivesUp time.Time `json:"gives_up,omitzero"`
	// Rungs and Reasons count what was entered, and why, since the start; what
	// never was is absent.
	Rungs    map[string]uint64 `json:"rungs"`
	Reasons  map[string]uint64 `json:"reasons"`
	FoundRTS uint64            `json:"found_in_rts"` // suspected QPs that were found in RTS
	Absorbed uint64            `json:"absorbed"`     // faults that needed no further step
	Stale    uint64            `json:"stale"`        // events of an earlier generation or operation
	History  []RecoveryRecord  `json:"history"`      // the last ones, oldest first
}

// RecoveryRecord is one recovery. One under way has no end, and lasts until now.
type RecoveryRecord struct {
	Rung     string          `json:"rung"`   // the highest it reached
	Reason   string          `json:"reason"` // the first one
	Start    time.Time       `json:"start"`
	End      time.Time       `json:"end,omitzero"`
	Duration journal.Seconds `json:"duration"` // from detection on
	Outage   journal.Seconds `json:"outage"`   // that before detection included
	Stopped  bool            `json:"stopped"`  // ended because the interface was stopped
	Request  string          `json:"request,omitempty"`
	Steps    []RecoveryStep  `json:"steps"`
	Omitted  int             `json:"omitted,omitempty"` // steps beyond those
}

// RecoveryStep is a rung that was entered.
type RecoveryStep struct {
	Rung   string    `json:"rung"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// NewRecovery describes the state and the rung of a ladder at the time now.
func NewRecovery(state fmt.Stringer, rung qprecovery.Rung, reason qprecovery.Reason, counts qprecovery.Counts, history []qprecovery.Record, now time.Time) *Recovery {
	r := &Recovery{
		State: state.String(), Rung: rung.String(), Reason: reason.String(),
		Rungs: map[string]uint64{}, Reasons: map[string]uint64{},
		FoundRTS: counts.FoundRTS, Absorbed: counts.Absorbed, Stale: counts.Stale,
		History: make([]RecoveryRecord, 0, len(history)),
	}
	for rung, n := range counts.Rungs {
		count(r.Rungs, qprecovery.Rung(rung), n)
	}
	for why, n := range counts.Reasons {
		count(r.Reasons, qprecovery.Reason(why), n)
	}
	for _, record := range history {
		r.add(record, now)
	}
	return r
}

func count(into map[string]uint64, name fmt.Stringer, n uint64) {
	if n > 0 {
		into[name.String()] = n
	}
}

// add appends a record; of one that is under way the ladder's outage is that, and
// its last rung tells more than the state does, of which the last try that failed
// is the reason.
func (r *Recovery) add(record qprecovery.Record, now time.Time) {
	end := record.End
	if end.IsZero() {
		record.End = now
		r.Since, r.Outage = record.Start, journal.Seconds(record.Outage())
		if n := len(record.Steps); n > 0 && record.Omitted == 0 {
			last := record.Steps[n-1]
			r.Rung, r.Reason = last.Rung.String(), last.Reason.String()
		}
	}
	r.History = append(r.History, newRecord(record, end))
}

func newRecord(r qprecovery.Record, end time.Time) RecoveryRecord {
	out := RecoveryRecord{
		Rung: r.Worst().String(), Reason: r.Reason.String(), Start: r.Start, End: end,
		Duration: journal.Seconds(r.Duration()), Outage: journal.Seconds(r.Outage()),
		Stopped: r.Stopped, Omitted: r.Omitted, Steps: make([]RecoveryStep, len(r.Steps)),
	}
	if r.Request != nil {
		out.Request = journal.Blame(*r.Request)
	}
	for i, s := range r.Steps {
		out.Steps[i] = RecoveryStep{s.Rung.String(), s.Reason.String(), s.At}
	}
	return out
}
