package sa

import "time"

// pace spaces the Sets that events cause.
type pace struct {
	last  time.Time // the latest Set
	sets  int       // caused by events in this flurry
	urged bool      // the next Set is caused by an event
}

// due returns when a Set may be sent that an event causes, and that should be sent after some time.
func (p *pace) due(now time.Time, after time.Duration) time.Time {
	if now.Sub(p.last) > calmTime {
		p.sets = 0
	}
	p.urged = true
	at, earliest := now.Add(after), p.last
	switch p.sets {
	case 0:
	case 1:
		earliest = p.last.Add(rushPause)
	default:
		earliest = p.last.Add(flurryPause)
	}
	if at.Before(earliest) {
		return earliest
	}
	return at
}

// set counts a Set.
func (p *pace) set(now time.Time) {
	p.last = now
	if p.urged {
		p.urged = false
		p.sets++
	}
}
