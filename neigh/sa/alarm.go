package sa

import (
	"container/heap"
	"time"
)

// alarms are the requests that something is due for, in chronological order; each operation takes O(log n).
type alarms struct{ heap []*request }

// set arms the alarm of r, or moves it.
func (q *alarms) set(r *request, at time.Time) {
	r.at = at
	if r.pos > 0 {
		heap.Fix(q, r.pos-1)
		return
	}
	heap.Push(q, r)
}

// stop turns the alarm of r off. It is idempotent.
func (q *alarms) stop(r *request) {
	if r.pos > 0 {
		heap.Remove(q, r.pos-1)
	}
}

// due turns off the earliest alarm if it is due, and returns its request, or nil.
func (q *alarms) due(now time.Time) *request {
	if len(q.heap) == 0 || q.heap[0].at.After(now) {
		return nil
	}
	return heap.Pop(q).(*request)
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (q *alarms) Len() int           { return len(q.heap) }
func (q *alarms) Less(i, j int) bool { return q.heap[i].at.Before(q.heap[j].at) }

func (q *alarms) Swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].pos, q.heap[j].pos = i+1, j+1
}

func (q *alarms) Push(x any) {
	r := x.(*request)
	q.heap = append(q.heap, r)
	r.pos = len(q.heap)
}

func (q *alarms) Pop() any {
	r := q.heap[len(q.heap)-1]
	q.heap[len(q.heap)-1] = nil
	q.heap = q.heap[:len(q.heap)-1]
	r.pos = 0
	return r
}
