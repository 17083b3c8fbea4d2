package qprecovery

import (
	"slices"
	"time"

	"ipoibd/hca"
)

const (
	// MaxRecords bounds a history: enough for a day of a flapping port, and
	// still one page.
	MaxRecords = 64
	// MaxSteps bounds the steps of one record; later steps are only counted.
	MaxSteps = 16
)

// Request describes a work request that failed (R3). The cause is a bug here, a
// memory fault or bad hardware.
type Request struct {
	Status    hca.WCStatus `json:"status"` // enum ibv_wc_status
	Opcode    hca.WCOpcode `json:"opcode"`
	VendorErr uint32       `json:"vendor_err"`
	WRID      uint64       `json:"wr_id"`
	SGList    []hca.SGE    `json:"sg_list"`  // lengths in bytes and lkeys as posted
	DestQPN   hca.QPN      `json:"dest_qpn"` // destination of a send
}

// Record is one recovery, as shown to the operator (R29).
type Record struct {
	Reason  Reason    `json:"reason"`  // of the first step
	Request *Request  `json:"request"` // the first failed one, if any; read-only
	Steps   []Step    `json:"steps"`   // at most MaxSteps
	Omitted int       `json:"omitted"` // number of further steps
	Start   time.Time `json:"start"`
	// End is zero while the recovery runs.
	End time.Time `json:"end"`
	// Since is when service was last known to work: Start, or an earlier time
	// if the fault was detected late.
	Since   time.Time `json:"since"`
	Stopped bool      `json:"stopped"` // ended because the interface was stopped, not because it became healthy
}

// Step is a rung that was entered, with its reason.
type Step struct {
	Rung   Rung      `json:"rung"`
	Reason Reason    `json:"reason"`
	At     time.Time `json:"at"`
}

// Duration returns the time from detection to the end.
func (r Record) Duration() time.Duration { return r.End.Sub(r.Start) }

// Outage returns the time without service, including the time before detection.
func (r Record) Outage() time.Duration { return r.End.Sub(r.Since) }

// Worst returns the highest rung reached.
func (r Record) Worst() (worst Rung) {
	for _, s := range r.Steps {
		worst = max(worst, s.Rung)
	}
	return worst
}

// Counts are counters since the start.
type Counts struct {
	Rungs     [NumRung]uint64   // times that a rung was entered
	Reasons   [NumReason]uint64 // times that a rung was entered, or skipped as spent, for a reason
	Recovered uint64            // recoveries by a rung that succeeded
	// Repairs are the durations of these, by the highest rung; Outage is the time without
	// service of all recoveries by a rung that have ended.
	Repairs  [NumRung]hca.Durations
	Outage   time.Duration
	FoundRTS uint64 // queries that found a suspected QP in RTS
	Absorbed uint64 // causes that the current recovery covers, or that have no effect
	Stale    uint64 // events of an earlier generation or operation
}

// history keeps the latest MaxRecords recoveries, including the current one.
type history struct {
	records []Record
	open    bool
	counts  Counts
}

// beginRecord opens a record unless one is open.
func (h *history) beginRecord(now, since time.Time, why Reason) {
	if h.open {
		return
	}
	if since.IsZero() || since.After(now) {
		since = now
	}
	if len(h.records) == MaxRecords {
		h.records = slices.Delete(h.records, 0, 1)
	}
	h.records = append(h.records, Record{Reason: why, Start: now, Since: since})
	h.open = true
}

// step adds a step to the open record.
func (h *history) step(now time.Time, rung Rung, why Reason) {
	h.counts.Rungs[rung]++
	h.counts.Reasons[why]++
	r := &h.records[len(h.records)-1]
	if len(r.Steps) == MaxSteps {
		r.Omitted++
		return
	}
	r.Steps = append(r.Steps, Step{rung, why, now})
}

// blame notes the first failed request of a recovery.
func (h *history) blame(req *Request) {
	if !h.open || req == nil {
		return
	}
	if r := &h.records[len(h.records)-1]; r.Request == nil {
		kept := *req
		kept.SGList = slices.Clone(req.SGList)
		r.Request = &kept
	}
}

// end closes the open record, if any, and returns a copy. It discards a record
// without steps and without a failed request, such as the record of a query that found no
// error.
func (h *history) end(now time.Time, stopped bool) (ended Record, ok bool) {
	if !h.open {
		return Record{}, false
	}
	h.open = false
	last := len(h.records) - 1
	if r := &h.records[last]; len(r.Steps) > 0 || r.Request != nil {
		r.End, r.Stopped = now, stopped
		if worst := r.Worst(); worst > RungSuspend {
			h.counts.Outage += max(r.Outage(), 0)
			if !stopped {
				h.counts.Recovered++
				h.counts.Repairs[worst].Observe(r.Duration())
			}
		}
		ended = *r
		ended.Steps = slices.Clone(r.Steps)
		return ended, true
	}
	h.records = h.records[:last]
	return Record{}, false
}

// list returns copies of the records, oldest first.
func (h *history) list() []Record {
	out := slices.Clone(h.records)
	for i := range out {
		out[i].Steps = slices.Clone(out[i].Steps)
	}
	return out
}
