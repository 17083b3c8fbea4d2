package guard

import "ipoibd/hca"

// PostSend implements [hca.QP].
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) {
	for done := 0; ; done += len(q.out) {
		part := wrs[done:min(len(wrs), done+len(q.out))]
		n, err := q.postSends(part)
		if err != nil || n < len(part) || done+n == len(wrs) {
			return done + n, err
		}
	}
}

func (q *QP) postSends(wrs []hca.SendWR) (int, error) {
	k, start, refused := q.enterSends(wrs)
	if k == 0 && refused != nil {
		return 0, refused
	}
	n, err := q.inner.PostSend(q.out[:k])
	n, err = q.end(q.sendCQ, &q.send, start, n, err)
	if err == nil {
		err = refused
	}
	return n, err
}

// enterSends adds requests to the book, up to the first that must be refused, for which it
// returns the error. It copies them to q.out with the backend's address handles.
func (q *QP) enterSends(wrs []hca.SendWR) (k int, start uint64, refused error) {
	q.sendCQ.mu.Lock()
	defer q.sendCQ.mu.Unlock()
	if f := q.dev.failure.Load(); f != nil {
		return 0, 0, f
	}
	b := &q.send.book
	for start = b.startPost(); k < len(wrs); k++ {
		ah, ok := wrs[k].UD.AH.(*AH)
		if !ok || ah.dev != q.dev {
			return k, start, hca.ErrInvalid
		}
		if !b.add(wrs[k].ID, q.all || wrs[k].Flags&hca.SendSignaled != 0) {
			return k, start, hca.ErrQueueFull
		}
		q.out[k] = wrs[k]
		q.out[k].UD.AH = ah.inner
	}
	return k, start, nil
}

// PostRecv implements [hca.QP].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	k, start, refused := q.enterRecvs(wrs)
	if k == 0 && refused != nil {
		return 0, refused
	}
	n, err := q.inner.PostRecv(wrs[:k])
	n, err = q.end(q.recvCQ, &q.recv, start, n, err)
	if err == nil {
		err = refused
	}
	return n, err
}

func (q *QP) enterRecvs(wrs []hca.RecvWR) (k int, start uint64, refused error) {
	q.recvCQ.mu.Lock()
	defer q.recvCQ.mu.Unlock()
	if f := q.dev.failure.Load(); f != nil {
		return 0, 0, f
	}
	b := &q.recv.book
	for start = b.startPost(); k < len(wrs); k++ {
		if !b.add(wrs[k].ID, true) {
			return k, start, hca.ErrQueueFull
		}
	}
	return k, start, nil
}

// end ends a post for which the backend accepted n requests.
func (q *QP) end(c *CQ, queue *queue, start uint64, n int, err error) (int, error) {
	if err != nil {
		_ = q.dev.note(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := q.dev.failure.Load(); f != nil {
		return queue.book.withdraw(start), f
	}
	queue.book.confirm(start, n)
	return n, err
}
