package guard

// entry is a request that is posted.
type entry struct {
	id       uint64
	signaled bool // a completion comes also on success
	done     bool
}

// book holds the requests of one queue that are posted and not completed, in
// order. Positions count on for ever; a slot is a position's low bits. There are
// twice as many slots as requests, so that one that was swallowed does not keep
// the others from going round.
type book struct {
	slots []entry // a power of two of them
	limit int     // of requests
	live  int     // requests that are not done
	head  uint64  // the oldest request that is not done
	firm  uint64  // requests before it were taken by the backend
	tail  uint64  // where the next one goes; firm to tail is a post under way
}

// newBook makes a book for depth requests.
func newBook(depth int) book {
	n := 2
	for n < 2*depth {
		n *= 2
	}
	return book{slots: make([]entry, n), limit: depth}
}

func (b *book) at(pos uint64) *entry { return &b.slots[pos&uint64(len(b.slots)-1)] }

func (b *book) empty() bool { return b.head == b.firm }

// begin begins a post and returns its start.
func (b *book) begin() (start uint64) {
	if b.tail-b.head > uint64(len(b.slots)-b.limit) {
		b.compact()
	}
	return b.tail
}

// compact moves what is not done together. It runs once in as many posted
// requests as the queue is deep, at most.
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

// add enters a request; false when the book is full.
func (b *book) add(id uint64, signaled bool) bool {
	if b.live >= b.limit {
		return false
	}
	*b.at(b.tail) = entry{id: id, signaled: signaled}
	b.tail++
	b.live++
	return true
}

// confirm ends a post that began at start and of which the backend took n; the
// rest is taken back.
func (b *book) confirm(start uint64, n int) {
	end := max(b.head, start+uint64(n))
	for pos := end; pos < b.tail; pos++ {
		b.strike(b.at(pos))
	}
	b.firm, b.tail = end, end
}

// strike notes that a request is done.
func (b *book) strike(e *entry) {
	if !e.done {
		e.done = true
		b.live--
	}
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
		b.strike(e)
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
			b.strike(e)
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
	b.strike(e)
	b.advance()
	b.firm = max(b.firm, b.head)
	return e.id, true
}

// clear forgets all requests. A post under way confirms nothing of them.
func (b *book) clear() { b.head, b.firm, b.live = b.tail, b.tail, 0 }
