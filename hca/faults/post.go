package faults

import (
	"errors"
	"slices"

	"ipoibd/hca"
)

// PostSend implements [hca.QP].
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) {
	switch busy, err := q.dev.applyPending("post_send", len(wrs)); {
	case err != nil:
		return 0, err
	case busy:
		return q.postMarked(wrs)
	}
	return q.QP.PostSend(wrs)
}

// PostRecv implements [hca.QP].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	switch busy, err := q.dev.applyPending("post_recv", len(wrs)); {
	case err != nil:
		return 0, err
	case busy:
		return q.postSpoiled(wrs)
	}
	return q.QP.PostRecv(wrs)
}

// queue is a further queue of a QP. The faults of single requests fire in the first queue
// only; all others concern every queue.
type queue struct {
	hca.Queue
	dev *Device
}

// PostSend implements [hca.Queue].
func (q *queue) PostSend(wrs []hca.SendWR) (int, error) {
	if _, err := q.dev.applyPending("post_send", len(wrs)); err != nil {
		return 0, err
	}
	return q.Queue.PostSend(wrs)
}

// PostRecv implements [hca.Queue].
func (q *queue) PostRecv(wrs []hca.RecvWR) (int, error) {
	if _, err := q.dev.applyPending("post_recv", len(wrs)); err != nil {
		return 0, err
	}
	return q.Queue.PostRecv(wrs)
}

// postSpoiled posts receives and fires RecvBadKey for some of them. A fault whose receive is
// not posted fires again later.
func (q *QP) postSpoiled(wrs []hca.RecvWR) (int, error) {
	wrs, fired := q.spoilRecvs(wrs)
	n, err := q.QP.PostRecv(wrs)
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	for _, i := range fired {
		if i >= n {
			q.dev.plan.undo(RecvBadKey)
		}
	}
	q.dev.recount()
	return n, err
}

// spoilRecvs returns the receives, those for which a fault fires with an invalid L_Key, and
// the indices of these.
func (q *QP) spoilRecvs(wrs []hca.RecvWR) (out []hca.RecvWR, fired []int) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	for i := range wrs {
		if q.dev.plan.fire(RecvBadKey, "") {
			fired = append(fired, i)
		}
	}
	if len(fired) == 0 {
		return wrs, nil
	}
	out = slices.Clone(wrs)
	for _, i := range fired {
		out[i].SGList = spoiled(out[i].SGList)
	}
	return out, fired
}

// applyPending fires the pending instant faults, for which each of n posted requests is an
// occasion, and those that make the post hang. It reports whether other faults are pending, and
// returns hca.ErrIO if the device is unplugged.
func (d *Device) applyPending(verb string, n int) (busy bool, err error) {
	d.hang(verb)
	if !d.busy.Load() { // before everything else: it is the case without faults
		n = 0
	}
	for range n {
		for k := range NumKind {
			if k.instant() && d.fireOne(k) {
				d.apply(k)
			}
		}
	}
	if d.gone.Load() {
		return false, hca.ErrIO
	}
	return d.busy.Load(), nil
}

// postMarked posts sends and fires faults for some of them.
func (q *QP) postMarked(wrs []hca.SendWR) (int, error) {
	for i := range wrs {
		k, ok := q.mark(wrs[i].ID)
		if !ok {
			continue
		}
		if n, err := q.QP.PostSend(wrs[:i]); n < i || err != nil {
			q.unmark(k)
			return n, err
		}
		if n, err := q.postVictim(wrs[i], k); n == 0 {
			q.unmark(k)
			return i, err
		}
		n, err := q.postMarked(wrs[i+1:])
		return i + 1 + n, err
	}
	return q.QP.PostSend(wrs)
}

// mark marks a send if a fault fires for it.
func (q *QP) mark(id uint64) (Kind, bool) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	k, ok := q.dev.plan.fireFirst(SendErrorSQE, SendFlushSQE, SendErrorErr, SendFlushErr, SwallowedSend)
	if ok {
		q.victims = append(q.victims, victim{id, k})
		q.dev.recount()
	}
	return k, ok
}

// unmark removes the last mark, because the send was not posted.
func (q *QP) unmark(k Kind) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.dev.plan.undo(k)
	if n := len(q.victims); n > 0 { // a concurrent reset may have cleared the marks
		q.victims = q.victims[:n-1]
	}
	q.dev.recount()
}

// postVictim posts a marked send, with an invalid L_Key if it is to fail. A device may refuse that at once, as those under
// rdmavt do; then only the completion of the send is falsified.
func (q *QP) postVictim(wr hca.SendWR, k Kind) (int, error) {
	wr.Flags |= hca.SendSignaled
	if k == SwallowedSend {
		return q.QP.PostSend([]hca.SendWR{wr})
	}
	failing := wr
	failing.SGList = spoiled(wr.SGList)
	n, err := q.QP.PostSend([]hca.SendWR{failing})
	if errors.Is(err, hca.ErrInvalid) {
		return q.QP.PostSend([]hca.SendWR{wr})
	}
	return n, err
}

func spoiled(list []hca.SGE) []hca.SGE {
	if len(list) == 0 {
		return []hca.SGE{{Length: 1, LKey: ^uint32(0)}}
	}
	list = slices.Clone(list)
	list[len(list)-1].LKey ^= ^uint32(0)
	return list
}
