package ud

import (
	"sync"

	"ipoibd/hca"
)

// injectSlots bounds the slow path's messages that wait for Tx: the ARP and ND
// messages of one Step, and the frames kept for a peer that has just been
// resolved.
const injectSlots = 256

// injected is a message of the slow path.
type injected struct {
	to  hca.UDDest
	msg []byte
}

// injectQueue passes messages from the slow path to Tx. Any goroutine may put;
// only the owner of Tx takes. It is closed while Tx is detached, because the
// address handles of its messages belong to the previous queue pair.
type injectQueue struct {
	mu   sync.Mutex
	open bool
	head int
	n    int
	ring [injectSlots]injected
}

// put queues a message and returns Injected, or the reason for refusing it.
func (q *injectQueue) put(m injected) Reason {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.open:
		return NoQP
	case q.n == injectSlots:
		return InjectFull
	}
	q.ring[(q.head+q.n)%injectSlots] = m
	q.n++
	return Injected
}

// take moves up to len(out) messages to out and returns how many. If the queue
// is then empty, it also returns the current epoch: messages put later cannot
// use handles of an older snapshot.
func (q *injectQueue) take(out []injected, peers *Snapshot) (n int, epoch uint64, empty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(out) && q.n > 0 {
		out[n] = q.pop()
		n++
	}
	if q.n > 0 {
		return n, 0, false
	}
	return n, peers.epoch(), true
}

func (q *injectQueue) pop() injected {
	m := q.ring[q.head]
	q.ring[q.head] = injected{}
	q.head = (q.head + 1) % injectSlots
	q.n--
	return m
}

// setOpen opens or closes the queue, drops its messages and returns their
// number.
func (q *injectQueue) setOpen(open bool) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped = q.n
	q.open, q.head, q.n = open, 0, 0
	clear(q.ring[:])
	return dropped
}

func (q *injectQueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}
