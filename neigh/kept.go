package neigh

// queue holds frames kept for one destination, oldest first.
type queue struct{ frames [][]byte }

// keeper accounts for the frames in all queues of a table.
type keeper struct {
	step          *step
	frames, bytes int
}

// keep appends a frame and takes ownership of it. It drops new frames rather than old ones,
// because the first frames open a connection and later ones are retransmitted.
func (k *keeper) keep(q *queue, frame []byte) {
	switch {
	case len(q.frames) >= maxPeerFrames:
		k.step.drop(DropKeptFrames)
	case k.bytes+len(frame) > maxKeptBytes:
		k.step.drop(DropKeptBytes)
	default:
		q.frames = append(q.frames, frame)
		k.frames++
		k.bytes += len(frame)
	}
}

// drain empties the queue and returns its frames.
func (k *keeper) drain(q *queue) [][]byte {
	frames := q.frames
	q.frames = nil
	k.frames -= len(frames)
	for _, f := range frames {
		k.bytes -= len(f)
	}
	return frames
}

// drop drops all frames in q.
func (k *keeper) drop(q *queue, why Reason) {
	k.step.stats.Drops[why] += uint64(len(k.drain(q)))
}
