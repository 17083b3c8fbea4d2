package sa

import (
	"cmp"
	"container/list"
	"maps"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// requestState is the state of a request. There is one request for each membership, each path, and the ClassPortInfo,
// so the same question is never asked twice at a time.
//
//	from                  | to      | cause                          | action
//	idle                  | delayed | start, later                   |
//	idle, delayed         | queued  | start, or the time has come    |
//	queued                | sent    | there are free slots           | Send
//	sent                  | queued  | no answer in time              | unanswered
//	sent                  | resting | no answer in time, or BUSY     | unanswered
//	resting               | queued  | the pause is over              |
//	sent, resting, queued | idle    | the answer                     | answered
//	queued                | idle    | until has come                 | unanswered
//	any                   | idle    | cancel                         |
//	resting               | queued  | renew, if that is due          |
//
// A transaction begins with the first Send and ends with idle. Repeated requests have the same one, so late answers
// count as long as the question is open. After renew they have another one.
type requestState uint8

const (
	requestIdle requestState = iota
	requestDelayed
	requestQueued
	requestSent // holds one of maxOutstanding slots
	requestResting
)

// subject is what a request is about.
type subject interface {
	// put writes the attribute of the request to data, which is zero.
	put(data []byte) (mad.Method, mad.Attribute, mad.Mask)
	// fits reports whether an answer without error is about this subject.
	fits(data []byte) bool
	// answered handles the answer. The request is idle.
	answered(s mad.Status, data []byte)
	// unanswered handles a time-out or BUSY. The request goes on, unless the subject cancels it, as it must once until
	// has come.
	unanswered(why Reason)
	// urgent reports whether the request goes before the others in the queue.
	urgent() bool
}

// request is a question to the SA.
type request struct {
	subject subject
	state   requestState
	tries   int       // Sends of this transaction
	first   time.Time // the first of them
	last    time.Time // the latest of them
	tid     uint64
	method  mad.Method
	attr    mad.Attribute

	until time.Time     // no try begins later; zero: no limit
	at    time.Time     // of the alarm: in delayed, sent and resting, and in queued for until
	pos   int           // place in alarms plus 1; 0: off
	place *list.Element // in the queue, while queued
}

// tidMask selects the part of a transaction ID by which answers are matched: some relays overwrite the upper 16 bits.
const tidMask = 1<<48 - 1

// requests are all requests of a port that are not idle.
type requests struct {
	step *step
	port *port

	alarms      alarms
	urgent      list.List // of *request, queued
	others      list.List // of *request, queued
	outstanding int
	byTID       map[uint64]*request // by the bits in tidMask
	ended       [maxEnded]uint64    // the latest transactions that have ended
	endedNext   int
	heard       time.Time     // when the SA last answered
	slowest     time.Duration // of its answers, older ones counting less; zero: there was none
	respTime    time.Duration
}

func (q *requests) init(s *step, p *port) {
	q.step, q.port, q.byTID = s, p, make(map[uint64]*request)
	q.urgent.Init()
	q.others.Init()
}

// start asks the question at a time, or earlier if that is planned. It does not affect a request that is under way.
func (q *requests) start(r *request, at time.Time) {
	sooner := r.state == requestDelayed && at.Before(r.at)
	if r.state != requestIdle && !sooner {
		return
	}
	if at.After(q.step.now) {
		r.state = requestDelayed
		q.alarms.set(r, at)
		return
	}
	q.enqueue(r)
}

func (q *requests) enqueue(r *request) {
	q.alarms.stop(r)
	if !r.until.IsZero() {
		q.alarms.set(r, r.until)
	}
	r.state = requestQueued
	if r.subject.urgent() {
		r.place = q.urgent.PushBack(r)
	} else {
		r.place = q.others.PushBack(r)
	}
}

// cancel makes r idle from any state, and ends its transaction.
func (q *requests) cancel(r *request) {
	switch r.state {
	case requestQueued:
		if r.subject.urgent() {
			q.urgent.Remove(r.place)
		} else {
			q.others.Remove(r.place)
		}
		r.place = nil
	case requestSent:
		q.outstanding--
	default:
	}
	q.alarms.stop(r)
	if r.tries > 0 {
		q.endTransaction(r)
	}
	r.state, r.tries = requestIdle, 0
}

// renew continues r, which is resting or queued, as another transaction: an answer to an earlier try no longer counts. The
// next try is at a time, or earlier if that is planned.
func (q *requests) renew(r *request, at time.Time) {
	q.endTransaction(r)
	q.beginTransaction(r)
	switch {
	case r.state != requestResting || !at.Before(r.at):
	case at.After(q.step.now):
		q.alarms.set(r, at)
	default:
		q.enqueue(r)
	}
}

func (q *requests) beginTransaction(r *request) {
	r.tid = q.newTID()
	q.byTID[r.tid&tidMask] = r
}

func (q *requests) endTransaction(r *request) {
	delete(q.byTID, r.tid&tidMask)
	q.ended[q.endedNext] = r.tid & tidMask
	q.endedNext = (q.endedNext + 1) % maxEnded
}

// pump sends queued requests while there are free slots.
func (q *requests) pump() {
	for q.outstanding < maxOutstanding && q.port.usable() {
		from := &q.urgent
		if from.Len() == 0 {
			from = &q.others
		}
		if from.Len() == 0 {
			return
		}
		r := from.Remove(from.Front()).(*request)
		r.place = nil
		q.alarms.stop(r)
		q.send(r)
	}
}

func (q *requests) send(r *request) {
	buf := make([]byte, mad.Len)
	method, attr, mask := r.subject.put(buf[mad.DataOffset:])
	if r.tries == 0 {
		q.beginTransaction(r)
		r.first, r.method, r.attr = q.step.now, method, attr
	}
	h := mad.NewRequest(method, attr, r.tid, mask)
	h.Put(buf)
	r.state, r.last = requestSent, q.step.now
	r.tries++
	q.outstanding++
	q.alarms.set(r, q.step.now.Add(q.slot()))
	q.step.stats.Sent++
	if r.tries > 1 {
		q.step.stats.Repeated++
	}
	q.step.emit(Send{
		TID: r.tid, MAD: buf, DLID: q.port.view.SMLID, SL: q.port.view.SMSL, QPN: hca.QPNGSI, QKey: mad.QKeyGSI,
	})
}

// newTID returns a transaction that differs from those under way and from zero.
func (q *requests) newTID() uint64 {
	for {
		tid := q.step.random.Uint64()
		if _, used := q.byTID[tid&tidMask]; !used && tid&tidMask != 0 {
			return tid
		}
	}
}

// expire does all that is due.
func (q *requests) expire() {
	for r := q.alarms.due(q.step.now); r != nil; r = q.alarms.due(q.step.now) {
		switch r.state {
		case requestSent:
			q.step.stats.Timeouts++
			q.postpone(r, r.last.Add(q.pause(r)), ReasonNoAnswer)
		case requestQueued:
			r.subject.unanswered(ReasonNoAnswer)
		default:
			q.enqueue(r)
		}
	}
}

// postpone releases the slot of r and repeats the request at a time.
func (q *requests) postpone(r *request, at time.Time, why Reason) {
	if r.state == requestSent {
		q.outstanding--
	}
	if at.After(q.step.now) {
		r.state = requestResting
		q.alarms.set(r, at)
	} else {
		q.enqueue(r)
	}
	r.subject.unanswered(why)
}

// slot returns how long a request counts as outstanding.
func (q *requests) slot() time.Duration {
	if q.slowest == 0 || !q.alive() {
		return slotTime
	}
	return min(max(slotFactor*q.slowest, leastSlot), slotTime)
}

// pause returns the time from the latest try of r, which was not answered, to the next one: as long as the SA has been
// silent until that try, since r began, but longer than its answers take. While it answers others, most likely only MADs
// are lost.
func (q *requests) pause(r *request) time.Duration {
	since := r.first
	if q.heard.After(since) {
		since = q.heard
	}
	d := max(min(r.last.Sub(since), maxPause), firstPause, min(slotFactor*q.slowest, busyPause))
	if r.tries <= quickTries {
		return d
	}
	if !q.alive() {
		d = max(d, q.patience())
	}
	return q.step.jitter(d)
}

// patience is how long an answer may take by the specification (IBA 13.4.6.2): the way through the subnet twice, and
// the time that the SA needs. Values above maxPause are cut, since a port may have any.
func (q *requests) patience() time.Duration {
	way := min(q.port.view.SubnetTimeout.Duration(), maxPause)
	return min(2*way+q.respTime, maxPause)
}

// overdue reports whether the SA has had enough time to answer r: the quick tries are over, and so is the time that
// the specification gives it.
func (q *requests) overdue(r *request) bool {
	return r.tries >= quickTries && q.step.now.Sub(r.first) >= q.patience()
}

// sendFailed counts a MAD that was not sent; its request goes on, because whatever failed needs time as well.
func (q *requests) sendFailed(tid uint64) {
	if r := q.byTID[tid&tidMask]; r != nil && r.tid == tid {
		q.step.stats.SendFailed++
	}
}

// alive reports whether the SA has answered lately.
func (q *requests) alive() bool { return q.step.now.Sub(q.heard) < aliveTime }

// hear notes that the SA answers. After a silence, it shortens the pauses that the silence has made long.
func (q *requests) hear() {
	silent := !q.alive()
	q.heard = q.step.now
	if !silent {
		return
	}
	for _, r := range q.open() {
		if r.state == requestResting && r.at.Sub(q.heard) > firstPause {
			q.alarms.set(r, q.heard.Add(q.step.upTo(firstPause)))
		}
	}
}

// open returns the requests with a transaction, in the order of their first Send.
func (q *requests) open() []*request {
	return slices.SortedFunc(maps.Values(q.byTID), func(a, b *request) int {
		return cmp.Or(a.first.Compare(b.first), cmp.Compare(a.tid, b.tid))
	})
}

// startOver begins all transactions again, with another SA.
func (q *requests) startOver() {
	for _, r := range q.open() {
		q.cancel(r)
		q.start(r, q.step.now.Add(q.step.upTo(rejoinSpread)))
	}
	q.heard, q.slowest, q.respTime = time.Time{}, 0, 0
}
