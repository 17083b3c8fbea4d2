package neigh

import "time"

// step is the Step under way, with the actions and counts of all components.
type step struct {
	now   time.Time
	out   []Action
	stats Stats // of all Steps
}

func (s *step) emit(a Action) { s.out = append(s.out, a) }

// drop counts one dropped frame.
func (s *step) drop(why Reason) { s.stats.Drops[why]++ }

// sent counts a message to the fabric; late: it was kept before.
func (s *step) sent(late bool) {
	if late {
		s.stats.KeptSent++
	} else {
		s.stats.ToFabric++
	}
}

// queue holds frames kept for one destination, oldest first.
type queue struct{ frames [][]byte }

// keep appends a frame to a queue and takes ownership of it, as long as at most limit bytes are kept in all queues. It
// drops new frames rather than old ones, because the first frames open a connection and later ones are retransmitted.
func (s *step) keep(q *queue, frame []byte, limit int) {
	switch {
	case len(q.frames) >= maxPeerFrames:
		s.drop(DropKeptFrames)
	case s.stats.KeptBytes+len(frame) > limit:
		s.drop(DropKeptBytes)
	default:
		q.frames = append(q.frames, frame)
		s.stats.Kept++
		s.stats.KeptBytes += len(frame)
	}
}

// drain empties a queue and returns its frames.
func (s *step) drain(q *queue) [][]byte {
	frames := q.frames
	q.frames = nil
	s.stats.Kept -= len(frames)
	for _, f := range frames {
		s.stats.KeptBytes -= len(f)
	}
	return frames
}

// dropKept drops all frames in a queue.
func (s *step) dropKept(q *queue, why Reason) {
	s.stats.Drops[why] += uint64(len(s.drain(q)))
}
