package memfabric

import (
	"time"

	"ipoibd/hca/soft/transport"
)

// datagram is a packet in a receive queue; its Data is buf's.
type datagram struct {
	pkt transport.Packet
	buf []byte // reused
	due time.Time
	seq uint64 // number within the fabric; sorts datagrams that are due at the same time
}

// newDatagram returns a datagram from the free list, filled with a copy of pkt.
func (f *Fabric) newDatagram(pkt *transport.Packet, due time.Time) *datagram {
	d := f.reuse()
	f.seq++
	d.buf = append(d.buf[:0], pkt.Data...)
	d.pkt, d.due, d.seq = *pkt, due, f.seq
	d.pkt.Data = d.buf
	return d
}

func (f *Fabric) reuse() *datagram {
	n := len(f.free)
	if n == 0 {
		return new(datagram)
	}
	d := f.free[n-1]
	f.free = f.free[:n-1]
	return d
}

// queue is a heap by due time; it implements heap.Interface.
type queue []*datagram

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if c := q[i].due.Compare(q[j].due); c != 0 {
		return c < 0
	}
	return q[i].seq < q[j].seq
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(*datagram)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	n := len(*q) - 1
	d := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	return d
}
