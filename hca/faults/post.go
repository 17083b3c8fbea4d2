package faults

import (
	"slices"

	"ipoibd/hca"
)

// PostSend implements [hca.QP].
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) {
	if q.dev.busy.Load() {
		q.dev.posted(len(wrs))
	}
	switch {
	case q.dev.gone.Load():
		return 0, hca.ErrIO
	case q.dev.busy.Load():
		return q.postDoomed(wrs)
	}
	return q.QP.PostSend(wrs)
}

// PostRecv implements [hca.QP].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	if q.dev.busy.Load() {
		q.dev.posted(len(wrs))
	}
	switch {
	case q.dev.gone.Load():
		return 0, hca.ErrIO
	case q.dev.busy.Load():
		return q.postSpoiled(wrs)
	}
	return q.QP.PostRecv(wrs)
}

// postSpoiled posts receives, some of which a fault may strike; those that are
// not posted it strikes the next time.
func (q *QP) postSpoiled(wrs []hca.RecvWR) (int, error) {
	wrs, struck := q.spoilRecvs(wrs)
	n, err := q.QP.PostRecv(wrs)
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	for _, i := range struck {
		if i >= n {
			q.dev.plan.undo(RecvBadKey)
		}
	}
	q.dev.recount()
	return n, err
}

// spoilRecvs returns the receives with those spoiled, and where they are, that a
// fault strikes.
func (q *QP) spoilRecvs(wrs []hca.RecvWR) (out []hca.RecvWR, struck []int) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	for i := range wrs {
		if q.dev.plan.strike(RecvBadKey, "") {
			struck = append(struck, i)
		}
	}
	if len(struck) == 0 {
		return wrs, nil
	}
	out = slices.Clone(wrs)
	for _, i := range struck {
		out[i].SGList = spoiled(out[i].SGList)
	}
	return out, struck
}

// posted does the instant faults that wait for n requests to be posted.
func (d *Device) posted(n int) {
	for range n {
		for k := range NumKind {
			if k.instant() && d.strikeOne(k) {
				d.act(k)
			}
		}
	}
}

// postDoomed posts sends, some of which a fault may strike.
func (q *QP) postDoomed(wrs []hca.SendWR) (int, error) {
	for i := range wrs {
		k, ok := q.doom(wrs[i].ID)
		if !ok {
			continue
		}
		if n, err := q.QP.PostSend(wrs[:i]); n < i || err != nil {
			q.pardon(k)
			return n, err
		}
		if n, err := q.postVictim(wrs[i], k); n == 0 {
			q.pardon(k)
			return i, err
		}
		n, err := q.postDoomed(wrs[i+1:])
		return i + 1 + n, err
	}
	return q.QP.PostSend(wrs)
}

// doom marks a send that a fault strikes.
func (q *QP) doom(id uint64) (Kind, bool) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	k, ok := q.dev.plan.first(SendErrorSQE, SendFlushSQE, SendErrorErr, SendFlushErr, SwallowedSend)
	if ok {
		q.doomed = append(q.doomed, doom{id, k})
		q.dev.recount()
	}
	return k, ok
}

// pardon takes the last mark back: the send was not posted.
func (q *QP) pardon(k Kind) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.dev.plan.undo(k)
	if n := len(q.doomed); n > 0 { // a reset may have been faster
		q.doomed = q.doomed[:n-1]
	}
	q.dev.recount()
}

// postVictim posts one send, from memory that no key covers where it is to fail.
func (q *QP) postVictim(wr hca.SendWR, k Kind) (int, error) {
	if k != SwallowedSend {
		wr.SGList = spoiled(wr.SGList)
	}
	wr.Flags |= hca.SendSignaled
	return q.QP.PostSend([]hca.SendWR{wr})
}

func spoiled(list []hca.SGE) []hca.SGE {
	if len(list) == 0 {
		return []hca.SGE{{Length: 1, LKey: ^uint32(0)}}
	}
	list = slices.Clone(list)
	list[len(list)-1].LKey ^= ^uint32(0)
	return list
}
