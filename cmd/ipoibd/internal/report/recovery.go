package report

import (
	"fmt"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Recovery is the history of the ladder of an interface or a device. Rungs and reasons are
// named as in qprecovery.
type Recovery struct {
	State     string          `json:"state"`
	Rung      string          `json:"rung"`
	Reason    string          `json:"reason"`
	Since     time.Time       `json:"since,omitzero"`
	Outage    journal.Seconds `json:"outage_seconds,omitzero"`
	NextTry   time.Time       `json:"next_try,omitzero"`
	GivesUp   time.Time       `json:"gives_up,omitzero"`
	Recovered uint64          `json:"recovered"`
	// Repairs are the durations of these recoveries, by the highest rung; OutageTotal is the
	// outage of all recoveries that have ended.
	Repairs     map[string]Histogram `json:"repair_seconds"`
	OutageTotal journal.Seconds      `json:"outage_seconds_total"`
	Rungs       map[string]uint64    `json:"rungs"`
	Reasons     map[string]uint64    `json:"reasons"`
	FoundRTS    uint64               `json:"found_in_rts"`
	Absorbed    uint64               `json:"absorbed"`
	Stale       uint64               `json:"stale"`
	History     []RecoveryRecord     `json:"history"`
}

// RecoveryRecord is one recovery. The current one has no end, and its durations are measured
// until now.
type RecoveryRecord struct {
	Rung     string          `json:"rung"`
	Reason   string          `json:"reason"`
	Start    time.Time       `json:"start"`
	End      time.Time       `json:"end,omitzero"`
	Duration journal.Seconds `json:"duration_seconds"`
	Outage   journal.Seconds `json:"outage_seconds"`
	Stopped  bool            `json:"stopped"`
	Request  string          `json:"request,omitempty"`
	Steps    []RecoveryStep  `json:"steps"`
	Omitted  int             `json:"omitted,omitempty"`
}

// RecoveryStep is a rung that was entered. It contains names, to keep those that another version has added.
type RecoveryStep struct {
	Rung   string    `json:"rung"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// NewRecovery describes a ladder at the time now. While a recovery runs, rung and reason come
// from its last step rather than from the state, which only tells why the latest attempt
// failed.
func NewRecovery(
	state fmt.Stringer, rung qprecovery.Rung, reason qprecovery.Reason, counts qprecovery.Counts,
	history []qprecovery.Record, now time.Time,
) *Recovery {
	r := &Recovery{
		State: state.String(), Rung: rung.String(), Reason: reason.String(), Recovered: counts.Recovered,
		Rungs: map[string]uint64{}, Reasons: map[string]uint64{},
		Repairs: map[string]Histogram{}, OutageTotal: journal.Seconds(counts.Outage),
		FoundRTS: counts.FoundRTS, Absorbed: counts.Absorbed, Stale: counts.Stale,
		History: make([]RecoveryRecord, 0, len(history)),
	}
	for rung, n := range counts.Rungs {
		if n > 0 {
			r.Rungs[qprecovery.Rung(rung).String()] = n
		}
	}
	for why, n := range counts.Reasons {
		if n > 0 {
			r.Reasons[qprecovery.Reason(why).String()] = n
		}
	}
	for rung := range counts.Repairs {
		if d := &counts.Repairs[rung]; d.Count > 0 {
			r.Repairs[qprecovery.Rung(rung).String()] = NewHistogram(d)
		}
	}
	for _, record := range history {
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
	return r
}

func newRecord(r qprecovery.Record, end time.Time) RecoveryRecord {
	out := RecoveryRecord{
		Rung: r.Worst().String(), Reason: r.Reason.String(), Start: r.Start, End: end,
		Duration: journal.Seconds(r.Duration()), Outage: journal.Seconds(r.Outage()),
		Stopped: r.Stopped, Omitted: r.Omitted, Steps: make([]RecoveryStep, len(r.Steps)),
	}
	if r.Request != nil {
		out.Request = blame(*r.Request)
	}
	for i, s := range r.Steps {
		out.Steps[i] = RecoveryStep{s.Rung.String(), s.Reason.String(), s.At}
	}
	return out
}

// Entered returns the entry of the journal for a rung that the recovery of scope has entered.
func Entered(scope string, a qprecovery.Entered) journal.Entry {
	return journal.Entry{Scope: scope, Kind: journal.KindRung, Rung: a.Rung.String(), Reason: a.Reason.String()}
}

// Ended returns the entry of the journal for the end of a recovery of scope. Its text names the failed
// request that caused the recovery, and the number of further steps that were not recorded.
func Ended(scope string, a qprecovery.Ended) journal.Entry {
	r := newRecord(a.Record, a.End)
	e := journal.Entry{
		Time: r.End, Scope: scope, Kind: journal.KindRecovered, Rung: r.Rung, Reason: r.Reason, Text: r.Request,
		Duration: r.Duration, Outage: r.Outage,
	}
	if r.Stopped {
		e.Kind = journal.KindStopped
	}
	if r.Omitted > 0 {
		e.Text = strings.TrimPrefix(fmt.Sprintf("%s; %d more steps", e.Text, r.Omitted), "; ")
	}
	return e
}

// blame describes a failed work request in one line (R3).
func blame(q qprecovery.Request) string {
	opcode := "send"
	if q.Opcode == hca.WCRecv {
		opcode = "receive"
	}
	text := fmt.Sprintf("%s of a %s, wr_id 0x%x, vendor error 0x%x", q.Status, opcode, q.WRID, q.VendorErr)
	for _, s := range q.SGList {
		text += fmt.Sprintf(", %d bytes lkey 0x%x", s.Length, s.LKey)
	}
	if q.DestQPN != 0 {
		text += fmt.Sprintf(", to QP %s", q.DestQPN)
	}
	return text
}
