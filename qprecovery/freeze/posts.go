package freeze

import "time"

// maxMarks bounds [Posts]: as many samples as fit into any sensible SendLimit.
const maxMarks = 64

// Posts tells how old the oldest outstanding send of a queue is, though nobody
// takes the time of a post: requests complete in order, so the number of those
// that ended names the oldest, and the number posted at each sample tells when
// it was there. It is young by no more than the time between two samples. The
// zero value is ready.
type Posts struct {
	marks []mark
	last  uint64
}

// mark is a sample that found new posts.
type mark struct {
	at     time.Time
	posted uint64
}

// Oldest takes how many requests were posted and how many of them ended, since
// the start, and returns an upper bound of when the oldest outstanding one was
// posted; zero: none is. Time does not run backwards, nor do the numbers.
func (p *Posts) Oldest(now time.Time, posted, ended uint64) time.Time {
	if posted != p.last && len(p.marks) < maxMarks {
		p.marks = append(p.marks, mark{now, posted})
		p.last = posted
	}
	done := 0
	for done < len(p.marks) && p.marks[done].posted <= ended {
		done++
	}
	p.marks = p.marks[:copy(p.marks, p.marks[done:])]
	switch {
	case posted <= ended:
		return time.Time{}
	case len(p.marks) == 0:
		return now
	}
	return p.marks[0].at
}
