package sa

import "time"

// pace spaces the Sets that events cause.
type pace struct {
	last  time.Time // the latest Set
	event time.Time // the latest event
	row   int       // Sets caused by the events of this flurry
	spent int       // Sets caused by events, less one for each flurryPause
	since time.Time // from when the next flurryPause counts
	urged bool      // the next Set is caused by an event
}

// due returns when a Set may be sent that an event causes, and that should be sent after some time.
func (p *pace) due(now time.Time, after time.Duration) time.Time {
	if now.Sub(p.event) > calmTime {
		p.row = 0
	}
	for p.spent > 0 && now.Sub(p.since) >= flurryPause {
		p.spent, p.since = p.spent-1, p.since.Add(flurryPause)
	}
	p.event, p.urged = now, true
	at, earliest := now.Add(after), p.last
	switch {
	case p.row > 1 || p.spent >= mostSpent:
		earliest = p.last.Add(flurryPause)
	case p.row == 1:
		earliest = p.last.Add(rushPause)
	}
	if at.Before(earliest) {
		return earliest
	}
	return at
}

// set counts a Set.
func (p *pace) set(now time.Time) {
	p.last = now
	if !p.urged {
		return
	}
	if p.spent == 0 {
		p.since = now
	}
	p.urged, p.row, p.spent = false, p.row+1, p.spent+1
}
