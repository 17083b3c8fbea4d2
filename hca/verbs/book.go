package verbs

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"ipoibd/hca"
)

// book tracks the requests of a send queue. A send of the caller is one request of the device,
// or several if it is cut. Each request has a number, its wr_id. The book turns the completions
// of requests into one completion of the send:
//
//	completion of a request               | the caller gets
//	success, the last one of its send     | a success, if it asked for one
//	success, another one of its send      | nothing
//	failure, the first one of its send    | the failure
//	any, of a send that has failed        | nothing
//	any, of a number that is not posted   | nothing
//
// The requests of a queue complete in order, so a completion releases all requests up to its
// own. Only one goroutine at a time may post; another one may take completions.
type book struct {
	entries []entry // by number, modulo the length: a power of two
	depth   int

	// Numbers of requests. Only posts use the first two, and only completions the last one.
	added    uint64        // the next one
	batch    uint64        // the first one of the last post
	posted   atomic.Uint64 // the device has those before it
	released atomic.Uint64 // the queue no longer contains those before it
	failed   uint64        // those before it belong to sends that have completed
}

// entry is a request in the queue.
type entry struct {
	id      uint64 // of the send
	left    uint32 // requests of the send that follow
	reports bool   // the caller requested a completion on success
}

// newBook returns the book of a queue of this depth. The numbers start at random, so that
// they differ from those of an earlier queue pair with the same QPN, and from the WR IDs of
// receives that complete on the same CQ.
func newBook(depth int) *book {
	b := &book{entries: make([]entry, places(depth)), depth: depth, added: rand.Uint64()}
	b.posted.Store(b.added)
	b.released.Store(b.added)
	b.failed = b.added
	return b
}

// places returns the number of entries of the book of a queue of this depth: the next power
// of two.
func places(depth int) int { return 1 << bits.Len(uint(depth-1)) }

// place returns the index of a request's entry.
func (b *book) place(number uint64) int { return int(number & uint64(len(b.entries)-1)) }

// room returns how many requests the queue has room for.
func (b *book) room() int { return b.depth - int(b.added-b.released.Load()) }

// add enters a send of n requests, for which there is room, and returns the number of the
// first.
func (b *book) add(id uint64, n int, reports bool) (first uint64) {
	first = b.added
	for i := range n {
		b.entries[b.place(first+uint64(i))] = entry{id: id, left: uint32(n - 1 - i), reports: reports}
	}
	b.added += uint64(n)
	return first
}

// post is called before the requests that were added are posted.
func (b *book) post() {
	b.batch = b.posted.Load()
	b.posted.Store(b.added)
}

// rest returns how many of the last n requests of the last post continue a send that begins
// before them.
func (b *book) rest(n int) int {
	end := b.added - uint64(n)
	if n == 0 || end == b.batch {
		return 0
	}
	return int(b.entries[b.place(end-1)].left)
}

// takeBack removes the last n requests of the last post, because the device refused them, and
// returns the number of their sends. The first of them must begin a send.
func (b *book) takeBack(n int) (sends int) {
	end := b.added - uint64(n)
	for at := end; at != b.added; at++ {
		if b.entries[b.place(at)].left == 0 {
			sends++
		}
	}
	b.added = end
	b.posted.Store(end)
	return sends
}

// has reports whether a number belongs to a posted request.
func (b *book) has(number uint64) bool {
	released := b.released.Load()
	return number-released < b.posted.Load()-released
}

// complete turns the completion of a request into the completion of its send. It returns false if the
// caller gets none.
func (b *book) complete(wc *hca.WC) bool {
	if !b.has(wc.ID) {
		return false
	}
	at, e := wc.ID, b.entries[b.place(wc.ID)]
	wc.ID = e.id
	b.released.Store(at + 1)
	switch {
	case int64(at-b.failed) < 0:
		return false
	case wc.Status != hca.WCSuccess:
		b.failed = at + uint64(e.left) + 1
		return true
	}
	return e.left == 0 && e.reports
}

// drop releases all requests after the queue was emptied. The caller must not post concurrently.
func (b *book) drop() { b.released.Store(b.posted.Load()) }
