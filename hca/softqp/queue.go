package softqp

// queue is a bounded queue over slots that are reused in place. pop makes it a FIFO, popNewest a
// LIFO.
type queue[T any] struct {
	slots []T
	head  int
	n     int
}

func newQueue[T any](depth int) queue[T] { return queue[T]{slots: make([]T, depth)} }

func (q *queue[T]) len() int   { return q.n }
func (q *queue[T]) full() bool { return q.n == len(q.slots) }

// at returns the i-th entry from the head, 0 <= i < len. Unless the queue is full,
// at(len) is the slot that push uses next.
func (q *queue[T]) at(i int) *T {
	i += q.head
	if i >= len(q.slots) {
		i -= len(q.slots)
	}
	return &q.slots[i]
}

// push appends an entry and returns it. The entry has the content of an earlier one.
func (q *queue[T]) push() *T {
	s := q.at(q.n)
	q.n++
	return s
}

// pop removes the entry at the head. An empty queue starts again with its first slots, which
// are in the cache.
func (q *queue[T]) pop() {
	q.head++
	q.n--
	if q.head == len(q.slots) || q.n == 0 {
		q.head = 0
	}
}

// popNewest removes the entry that was pushed last and returns it, valid until the next push.
func (q *queue[T]) popNewest() *T {
	q.n--
	return q.at(q.n)
}

func (q *queue[T]) clear() { q.head, q.n = 0, 0 }
