package ud

// fifo is a queue of slots in posting order. A send queue completes in order
// (IBA 10.8.3.2), so an unsignaled send is done when a later send is.
type fifo struct {
	slots []uint32
	head  int // the oldest
	n     int
}

func newFIFO(slots int) fifo { return fifo{slots: make([]uint32, slots)} }

// push appends a slot. It cannot overflow, because the queue has room for every
// slot of the ring.
func (f *fifo) push(slot uint32) {
	f.slots[(f.head+f.n)%len(f.slots)] = slot
	f.n++
}

// pop removes the oldest slot. The queue must not be empty.
func (f *fifo) pop() uint32 {
	slot := f.slots[f.head]
	f.head = (f.head + 1) % len(f.slots)
	f.n--
	return slot
}

func (f *fifo) clear() { f.head, f.n = 0, 0 }
