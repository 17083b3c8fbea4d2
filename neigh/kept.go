package neigh

// queue holds frames kept for one destination, oldest first.
type queue struct{ frames [][]byte }

// keeper accounts for the frames in all queues of a table.
type keeper struct{ frames, bytes int }

// keep appends a frame and takes ownership of it. It refuses new frames rather
// than dropping old ones, because the first frames open a connection and later
// ones are retransmitted.
func (k *keeper) keep(q *queue, frame []byte) (Reason, bool) {
	switch {
	case len(q.frames) >= maxPeerFrames:
		return DropKeptFrames, false
	case k.bytes+len(frame) > maxKeptBytes:
		return DropKeptBytes, false
	}
	q.frames = append(q.frames, frame)
	k.frames++
	k.bytes += len(frame)
	return 0, true
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

// keep keeps a frame, or counts it as dropped.
func (t *core) keep(q *queue, frame []byte) {
	if why, ok := t.kept.keep(q, frame); !ok {
		t.drop(why)
	}
}

// dropKept drops all frames in q.
func (t *core) dropKept(q *queue, why Reason) {
	t.stats.Drops[why] += uint64(len(t.kept.drain(q)))
}

// drop counts one dropped frame.
func (t *core) drop(why Reason) { t.stats.Drops[why]++ }
