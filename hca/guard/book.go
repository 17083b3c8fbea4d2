package guard

// entry is a request that is posted.
type entry struct {
	id       uint64
	signaled bool // a completion comes also on success
	done     bool
}

// book holds the requests of one queue that are posted and not completed, in
// order. Positions count on for ever; a slot is a position's low bits.
type book struct {
	slots []entry // a power of two of them
	limit uint64  // how many are used
	head  uint64  // the oldest request that is not completed
	firm  uint64  // requests before it were taken by the backend
	tail  uint64  // where the next one goes; firm to tail is a post under way
}

// newBook makes a book for depth requests.
func newBook(depth int) book {
	n := 1
	for n < depth {
		n *= 2
	}
	return book{slots: make([]entry, n), limit: uint64(depth)}
}

func (b *book) at(pos uint64) *entry { return &b.slots[pos&uint64(len(b.slots)-1)] }

func (b *book) empty() bool { return b.head == b.firm }

// add enters a request; false when the book is full.
func (b *book) add(id uint64, signaled bool) bool {
	if b.tail-b.head >= b.limit {
		return false
	}
	*b.at(b.tail) = entry{id: id, signaled: signaled}
	b.tail++
	return true
}

// confirm ends a post that began at start and of which the backend took n; the
// rest is taken back.
func (b *book) confirm(start uint64, n int) {
	if to := start + uint64(n); to > b.head {
		b.firm, b.tail = to, to
		return
	}
	b.firm, b.tail = b.head, b.head
}

// withdraw ends a post that began at start in the failed state. It keeps what
// was completed, with all before it, and returns how many that are.
func (b *book) withdraw(start uint64) (n int) {
	for pos := start; pos < b.tail; pos++ {
		if pos < b.head || b.at(pos).done {
			n = int(pos-start) + 1
		}
	}
	b.confirm(start, n)
	return n
}

// complete strikes a request off, and with a success every unsignaled one before
// it; false when there is no such request.
func (b *book) complete(id uint64, success bool) bool {
	for pos := b.head; pos < b.tail; pos++ {
		e := b.at(pos)
		if e.done || e.id != id || success && !e.signaled {
			continue
		}
		e.done = true
		b.settle(pos)
		return true
	}
	return false
}

// settle strikes off the unsignaled requests before pos, of which the completion
// at pos says that they are done. A signaled one stays: its completion was
// swallowed.
func (b *book) settle(pos uint64) {
	for p := b.head; p < pos; p++ {
		if e := b.at(p); !e.signaled {
			e.done = true
		}
	}
	b.advance()
	b.firm = max(b.firm, b.head)
}

// advance moves the head on over all that is done.
func (b *book) advance() {
	for b.head < b.tail && b.at(b.head).done {
		b.head++
	}
}

// pop takes out the oldest request that the backend took and that is not
// completed.
func (b *book) pop() (id uint64, ok bool) {
	if b.empty() {
		return 0, false
	}
	e := b.at(b.head)
	e.done = true
	b.advance()
	b.firm = max(b.firm, b.head)
	return e.id, true
}

// clear forgets all requests. A post under way confirms nothing of them.
func (b *book) clear() { b.head, b.firm = b.tail, b.tail }
