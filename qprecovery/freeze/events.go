package freeze

// lostEvents is how often in a row only a poll must have found receives. Once may be chance: the scheduler
// may have run the detector in time, but not the pump.
const lostEvents = 3

// events tracks whether the events of the receive CQ arrive, by what found its completions: an event, or
// a poll that a probe without an answer has caused.
type events struct {
	polled polled // the last decision
	tardy  bool   // a sample came late since the last probe was requested, so the pumps may be late too
	polls  int    // consecutive times that only a poll found receives
	total  uint64 // times that only a poll found receives
	lost   bool   // polls has reached lostEvents, and no event has found any since
}

// polled is whether the last decision was to poll.
type polled uint8

const (
	pollNone  polled = iota
	pollFirst        // for the first time since the last probe was requested
	pollAgain        // because the pumps had not run, or after a stall
)

// received notes whether anything was received since the last sample. Only receives that the pump found
// as soon as it polled show that it got no event: if it had to be asked again, it may have got one
// and waited for a processor.
func (e *events) received(any bool) {
	was := e.polled
	e.polled = pollNone
	switch {
	case !any:
	case was == pollNone:
		e.polls, e.lost = 0, false
	case was == pollFirst && !e.tardy:
		e.polls++
		e.total++
	default:
		e.polls = 0
	}
}

// suspect reports, once for each lostEvents times, whether events are lost.
func (e *events) suspect() bool {
	if e.polls < lostEvents {
		return false
	}
	e.polls, e.lost = 0, true
	return true
}

// decided notes a decision.
func (e *events) decided(poll, first bool) {
	switch {
	case poll && first:
		e.polled = pollFirst
	case poll:
		e.polled = pollAgain
	}
}

// EventsLost reports whether only polls find what the queue pair has received. It stays true until an
// event finds something.
func (d *Detector) EventsLost() bool { return d.events.lost }

// FoundByPoll returns how often only a poll found what the queue pair had received.
func (d *Detector) FoundByPoll() uint64 { return d.events.total }
