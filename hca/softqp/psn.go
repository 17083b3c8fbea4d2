package softqp

import "sync/atomic"

// psnMask is a packet sequence number's 24 bits (IBA 9.2).
const psnMask = 0xffffff

// PSNs are the packet sequence numbers of a queue pair. All its queues take them from one counter, and so does a fast path, whose
// programs share the memory of the counter: no two packets of the queue pair have the same number before they wrap. A change of
// the next number, or of the memory, needs the send sides of all queues.
type PSNs struct {
	next *uint32 // changed by atomic operations; its low 24 bits are the next number
}

// NewPSNs returns the numbers from 0 on.
func NewPSNs() *PSNs { return &PSNs{new(uint32)} }

// Move moves the counter to other memory.
func (p *PSNs) Move(to *uint32) {
	atomic.StoreUint32(to, p.value())
	p.next = to
}

func (p *PSNs) value() uint32 { return atomic.LoadUint32(p.next) & psnMask }

func (p *PSNs) set(psn uint32) { atomic.StoreUint32(p.next, psn) }

// take returns the first of n numbers in a row; only its low 24 bits count.
func (p *PSNs) take(n int) uint32 { return atomic.AddUint32(p.next, uint32(n)) - uint32(n) }

// giveBack gives n numbers in a row back, unless others were taken after them: then no packet has them.
func (p *PSNs) giveBack(first uint32, n int) {
	atomic.CompareAndSwapUint32(p.next, first+uint32(n), first)
}
