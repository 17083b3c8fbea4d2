package neigh

// queue holds frames kept for one destination, oldest first.
type queue struct{ frames [][]byte }

// keeper accounts for the frames in all queues of a table.
type keeper struct{ frames, bytes int }

// keep appends a frame, which becomes the queue's. The newest frame is the one
// refused: the first ones open a connection, later ones are sent again.
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

// take empties the queue and returns what was in it.
func (k *keeper) take(q *queue) [][]byte {
	frames := q.frames
	q.frames = nil
	k.frames -= len(frames)
	for _, f := range frames {
		k.bytes -= len(f)
	}
	return frames
}

// keep keeps a frame or counts why not.
func (t *Table) keep(q *queue, frame []byte) {
	if why, ok := t.kept.keep(q, frame); !ok {
		t.drop(why)
	}
}

// dropKept drops what is in q.
func (t *Table) dropKept(q *queue, why Reason) {
	t.stats.Drops[why] += uint64(len(t.kept.take(q)))
}

// drop counts one frame that ends here.
func (t *Table) drop(why Reason) { t.stats.Drops[why]++ }
