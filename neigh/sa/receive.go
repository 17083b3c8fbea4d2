package sa

import (
	"slices"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// Refusal is the reason for which a received MAD was ignored.
type Refusal uint8

// The refusals. Only root can send from QP1 of a port, and transactions are random, so an answer that passes comes from
// the SA or from a privileged process on its host.
const (
	RefuseNotSM     Refusal = iota // not from the SM LID
	RefuseNotQP1                   // not from QP1
	RefuseMalformed                // not a MAD of the SA class, or one of several segments
	RefuseNotAnswer                // a request, such as a report of an event
	RefuseLate                     // the transaction has ended: a second answer, or one that took too long
	RefuseForeign                  // never a transaction of this client
	RefuseMismatch                 // the method or the attribute is not that of the answer
	RefuseRecord                   // the record is about another group or path
	NumRefusal                     // number of refusals
)

var refusalNames = [NumRefusal]string{
	"not_sm", "not_gsi", "malformed", "not_answer", "late", "foreign", "mismatch", "wrong_record",
}

func (r Refusal) String() string {
	if r >= NumRefusal {
		return "unknown"
	}
	return refusalNames[r]
}

// receive checks a MAD and passes it to its request.
func (q *requests) receive(ev Received) {
	q.step.stats.Received++
	var h mad.SA
	r, why := q.match(ev, &h)
	if r == nil {
		q.step.stats.Refused[why]++
		if why == RefuseLate { // a second answer: the request was repeated too early
			q.slowest = slotTime
		}
		return
	}
	q.hear()
	if r.tries == 1 { // otherwise the answer may be to an earlier try
		q.slowest = max(q.slowest-q.slowest/slotFactor, q.step.now.Sub(r.first))
	}
	if h.Status.Busy() {
		q.step.stats.Busy++
		pause := min(firstPause<<min(r.tries-1, 8), busyPause)
		at := q.step.now.Add(pause + q.step.upTo(pause/4))
		switch {
		case r.state == requestSent:
			q.postpone(r, at, ReasonBusy)
		case r.state == requestResting && at.After(r.at): // the answer has taken longer than the slot
			q.alarms.set(r, at)
			r.subject.unanswered(ReasonBusy)
		}
		return
	}
	q.step.stats.Answered++
	q.cancel(r)
	r.subject.answered(h.Status, ev.MAD[mad.DataOffset:])
}

// match returns the request that a MAD answers, and its header, or nil and the reason.
func (q *requests) match(ev Received, h *mad.SA) (*request, Refusal) {
	switch err := h.Parse(ev.MAD); {
	case q.port.view.SMLID == 0 || ev.SLID != q.port.view.SMLID:
		return nil, RefuseNotSM
	case ev.SrcQPN != hca.QPNGSI:
		return nil, RefuseNotQP1
	case err != nil:
		return nil, RefuseMalformed
	case h.Method&mad.MethodResponse == 0:
		return nil, RefuseNotAnswer
	}
	r, ok := q.byTID[h.TID&tidMask]
	switch {
	case !ok && h.TID&tidMask != 0 && slices.Contains(q.ended[:], h.TID&tidMask):
		return nil, RefuseLate
	case !ok:
		return nil, RefuseForeign
	case h.Method != r.method.Response() || h.Attribute != r.attr:
		return nil, RefuseMismatch
	case h.Status == mad.StatusOK && !r.subject.fits(ev.MAD[mad.DataOffset:]):
		return nil, RefuseRecord
	}
	return r, 0
}
