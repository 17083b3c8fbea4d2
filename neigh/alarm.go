package neigh

import (
	"container/heap"
	"time"
)

// alarm is a deadline for one T. Its zero value is off.
type alarm[T any] struct {
	at  time.Time
	pos int // place in the heap plus 1; 0: off
	of  T
}

// alarms are deadlines in chronological order; each operation takes O(log n).
type alarms[T any] struct{ heap []*alarm[T] }

// set arms a for of at the given time, or moves it to that time if it is armed.
func (q *alarms[T]) set(a *alarm[T], of T, at time.Time) {
	a.at, a.of = at, of
	if a.pos > 0 {
		heap.Fix(q, a.pos-1)
		return
	}
	heap.Push(q, a)
}

// stop turns a off. It is idempotent.
func (q *alarms[T]) stop(a *alarm[T]) {
	if a.pos > 0 {
		heap.Remove(q, a.pos-1)
	}
}

// due turns off the earliest alarm if it is due, and returns the T that it was
// set for.
func (q *alarms[T]) due(now time.Time) (of T, ok bool) {
	if len(q.heap) == 0 || q.heap[0].at.After(now) {
		return of, false
	}
	of = q.heap[0].of
	heap.Pop(q)
	return of, true
}

// next returns the earliest deadline, or zero if there is none.
func (q *alarms[T]) next() time.Time {
	if len(q.heap) == 0 {
		return time.Time{}
	}
	return q.heap[0].at
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (q *alarms[T]) Len() int           { return len(q.heap) }
func (q *alarms[T]) Less(i, j int) bool { return q.heap[i].at.Before(q.heap[j].at) }

func (q *alarms[T]) Swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].pos, q.heap[j].pos = i+1, j+1
}

func (q *alarms[T]) Push(x any) {
	a := x.(*alarm[T])
	q.heap = append(q.heap, a)
	a.pos = len(q.heap)
}

func (q *alarms[T]) Pop() any {
	a := q.heap[len(q.heap)-1]
	q.heap[len(q.heap)-1] = nil
	q.heap = q.heap[:len(q.heap)-1]
	a.pos = 0
	return a
}

// rate limits an operation to a number of times per second. The zero value is ready
// to use.
type rate struct {
	end  time.Time // end of the current second
	done int       // count in that second
}

// left reports whether the operation is allowed now.
func (r *rate) left(now time.Time, most int) bool { return r.done < most || !now.Before(r.end) }

// allow reports whether the operation is allowed now, and counts it if so.
func (r *rate) allow(now time.Time, most int) bool {
	if !r.left(now, most) {
		return false
	}
	if !now.Before(r.end) {
		*r = rate{end: now.Add(time.Second)}
	}
	r.done++
	return true
}
