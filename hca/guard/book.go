package guard

// entry is a posted request.
type entry struct {
	id       uint64
	signaled bool // it also completes on success
	done     bool
}

// book holds the posted and not yet completed requests of one queue, in order. Positions
// increase forever; the low bits of a position are the index of its slot. There are at
// least twice as many slots as requests, so that a request whose completion is lost does
// not stop the others from wrapping around.
type book struct {
	slots []entry // the length is a power of two
	limit int     // maximum of live
	live  int     // requests that are not done
	head  uint64  // position of the oldest request that is not done
	firm  uint64  // the backend has accepted the requests before this position
	tail  uint64  // position of the next request; firm to tail is the current post
}

// newBook returns a book for depth requests.
func newBook(depth int) book {
	n := 2
	for n < 2*depth {
		n *= 2
	}
	return book{slots: make([]entry, n), limit: depth}
}

func (b *book) at(pos uint64) *entry { return &b.slots[pos&uint64(len(b.slots)-1)] }

func (b *book) empty() bool { return b.head == b.firm }

// startPost starts a post and returns its first position.
func (b *book) startPost() (start uint64) {
	if b.tail-b.head > uint64(len(b.slots)-b.limit) {
		b.compact()
	}
	return b.tail
}

// compact closes the gaps between the requests that are not done. For a queue of depth n, it
// runs at most once in n posted requests.
func (b *book) compact() {
	to := b.tail
	for pos := b.tail; pos > b.head; pos-- {
		if e := b.at(pos - 1); !e.done {
			to--
			*b.at(to) = *e
		}
	}
	b.head = to
}

// add adds a request. It returns false if the book is full.
func (b *book) add(id uint64, signaled bool) bool {
	if b.live >= b.limit {
		return false
	}
	*b.at(b.tail) = entry{id: id, signaled: signaled}
	b.tail++
	b.live++
	return true
}

// confirm ends the post that started at start and removes all but its first n requests, which
// the backend has accepted.
func (b *book) confirm(start uint64, n int) {
	end := max(b.head, start+uint64(n))
	for pos := end; pos < b.tail; pos++ {
		b.markDone(b.at(pos))
	}
	b.firm, b.tail = end, end
}

// markDone marks a request as done.
func (b *book) markDone(e *entry) {
	if !e.done {
		e.done = true
		b.live--
	}
}

// withdraw ends the post that started at start, in the failed state. It keeps its requests up
// to the last completed one, and returns their number.
func (b *book) withdraw(start uint64) (n int) {
	for pos := start; pos < b.tail; pos++ {
		if pos < b.head || b.at(pos).done {
			n = int(pos-start) + 1
		}
	}
	b.confirm(start, n)
	return n
}

// complete marks a request as done, together with the unsignaled ones before it. It returns
// false if there is no such request. A success does not match an unsignaled request.
func (b *book) complete(id uint64, success bool) bool {
	for pos := b.head; pos < b.tail; pos++ {
		e := b.at(pos)
		if e.done || e.id != id || success && !e.signaled {
			continue
		}
		b.markDone(e)
		b.settle(pos)
		return true
	}
	return false
}

// settle marks the unsignaled requests before pos as done, which the completion at pos
// implies. A signaled one stays, because its own completion is missing.
func (b *book) settle(pos uint64) {
	for p := b.head; p < pos; p++ {
		if e := b.at(p); !e.signaled {
			b.markDone(e)
		}
	}
	b.advance()
	b.firm = max(b.firm, b.head)
}

// advance moves the head past the requests that are done.
func (b *book) advance() {
	for b.head < b.tail && b.at(b.head).done {
		b.head++
	}
}

// pop removes the oldest request that the backend has accepted and not completed.
func (b *book) pop() (id uint64, ok bool) {
	if b.empty() {
		return 0, false
	}
	e := b.at(b.head)
	b.markDone(e)
	b.advance()
	b.firm = max(b.firm, b.head)
	return e.id, true
}

// clear removes all requests, including those of a current post.
func (b *book) clear() { b.head, b.firm, b.live = b.tail, b.tail, 0 }
