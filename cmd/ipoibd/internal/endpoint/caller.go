package endpoint

import (
	"runtime"
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// Caller gives one goroutine access to a queue and to one of its CQs. The guard sets no time limit for
// posts and for the methods of a CQ (hca/guard), so a goroutine that calls them hangs with the device.
// A Caller notes which call its goroutine is in, so that another goroutine can wait for it with a limit
// ([Caller.Await]). A call that does not return in time is a stuck verb (R8, R19): the device fails,
// and if the call returns after all, its goroutine ends at once. So nothing touches again what that
// goroutine owned.
type Caller struct {
	Queue hca.Queue // nil: only a CQ is used
	CQ    hca.CQ

	session Session
	// in counts the calls in its upper bits. The lower bits say which one the goroutine is in.
	in atomic.Uint64
	// returned delivers what guard.Device.AbandonCall has returned, once in is callAbandoned.
	returned chan func()
}

// The calls, in the lower bits of Caller.in.
const (
	callNone uint64 = iota
	callPostSend
	callPostRecv
	callPoll
	callArm
	callWait
	callAbandoned

	callNext = 8
	callMask = callNext - 1
)

// callVerbs are the names of the calls in libibverbs, without the prefix.
var callVerbs = [...]string{
	callPostSend: "post_send",
	callPostRecv: "post_recv",
	callPoll:     "poll_cq",
	callArm:      "req_notify_cq",
	callWait:     "get_cq_event",
}

const (
	// callLimit is how long a call may take: about as long as a verb (guard.Options), although it takes
	// microseconds.
	callLimit = time.Second
	// callLooks is how often Await checks a call within callLimit. A stall of this process, however
	// long, costs one check, so it is not mistaken for a call that hangs.
	callLooks = 4
)

// NewCaller returns a Caller of queue, which may be nil, and cq, on a device.
func NewCaller(s Session, queue hca.Queue, cq hca.CQ) *Caller {
	c := &Caller{session: s, returned: make(chan func(), 1)}
	if queue != nil {
		c.Queue = &calledQueue{queue, c}
	}
	c.CQ = &calledCQ{cq, c}
	return c
}

// Do calls f, which uses the device only through c, on a goroutine of its own if the device may block. It returns the
// error of f, or one that wraps hca.ErrStuck if f hangs in the device.
func (c *Caller) Do(f func() error) (err error) {
	if c.session.Attr().NeverBlocks {
		return f()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = f()
	}()
	if stuck := c.Await(ended); stuck != nil {
		return stuck
	}
	return err
}

// Await waits until the goroutine that uses c, and that was asked to end, has ended, and returns nil. If
// one of its calls does not return within callLimit, Await returns an error that wraps hca.ErrStuck. In that
// case the goroutine is abandoned, and the device has failed.
func (c *Caller) Await(ended <-chan struct{}) error {
	look := time.NewTicker(callLimit / callLooks)
	defer look.Stop()
	seen, looks := c.in.Load(), 0
	for {
		select {
		case <-ended:
			return nil
		case <-look.C:
		}
		looks++
		if now := c.in.Load(); now != seen || now&callMask == callNone {
			seen, looks = now, 0
		}
		if looks >= callLooks && c.abandon(seen) {
			return &hca.VerbError{Verb: callVerbs[seen&callMask], On: c.session.Attr().Name, Err: hca.ErrStuck}
		}
	}
}

// abandon gives up the goroutine's current call. It returns false if the call has just returned.
func (c *Caller) abandon(call uint64) bool {
	if !c.in.CompareAndSwap(call, callAbandoned) {
		return false
	}
	c.returned <- c.session.AbandonCall()
	return true
}

// enter notes the beginning of a call.
func (c *Caller) enter(call uint64) {
	c.in.Store(c.in.Load()&^callMask + callNext + call)
}

// leave notes the end of the call. It does not return if the call was abandoned.
func (c *Caller) leave() {
	call := c.in.Load()
	if call == callAbandoned || !c.in.CompareAndSwap(call, call&^callMask) {
		(<-c.returned)()
		runtime.Goexit()
	}
}

type calledQueue struct {
	hca.Queue
	by *Caller
}

// PostSend implements [hca.Queue].
func (q *calledQueue) PostSend(wrs []hca.SendWR) (int, error) {
	q.by.enter(callPostSend)
	n, err := q.Queue.PostSend(wrs)
	q.by.leave()
	return n, err
}

// PostRecv implements [hca.Queue].
func (q *calledQueue) PostRecv(wrs []hca.RecvWR) (int, error) {
	q.by.enter(callPostRecv)
	n, err := q.Queue.PostRecv(wrs)
	q.by.leave()
	return n, err
}

type calledCQ struct {
	hca.CQ
	by *Caller
}

// Poll implements [hca.CQ].
func (c *calledCQ) Poll(wc []hca.WC) (int, error) {
	c.by.enter(callPoll)
	n, err := c.CQ.Poll(wc)
	c.by.leave()
	return n, err
}

// Arm implements [hca.CQ].
func (c *calledCQ) Arm() error {
	c.by.enter(callArm)
	err := c.CQ.Arm()
	c.by.leave()
	return err
}

// Wait implements [hca.CQ].
func (c *calledCQ) Wait(until time.Time) error {
	c.by.enter(callWait)
	err := c.CQ.Wait(until)
	c.by.leave()
	return err
}
