package guard

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// verb describes a call of the backend.
type verb struct {
	name     string        // as in libibverbs, without the prefix
	on       []*object     // the objects that it uses; they are not closed in the backend until it returns
	patience time.Duration // the timeout; 0 means Options.VerbTimeout
	peer     bool          // it may wait for a peer, for up to Options.AHStuck
	host     bool          // it may wait for a lock of the host, for up to Options.HostStuck
}

// places returns the channel that limits verbs like v. Verbs that wait for peers or for a lock of
// the host have their own, so that they do not delay other verbs, by which the device shows that it works.
func (d *Device) places(v verb) chan struct{} {
	switch {
	case v.peer:
		return d.peers
	case v.host:
		return d.hosts
	}
	return d.slots
}

// fate is the outcome of a call.
type fate uint8

const (
	fateAnswered  fate = iota // the backend returned in time
	fateRefused               // the backend was not called, because the device has failed
	fateAbandoned             // the caller returns; the backend returns late or never
)

type answer[T any] struct {
	val  T
	err  error
	fate fate
}

// ask is call for a verb that creates no object.
func ask[T any](d *Device, v verb, f func() (T, error)) (T, error) {
	a := call(d, v, f, func(T, error) {})
	return a.val, a.err
}

const closeDevice = "close_device"

// waits reports whether a verb may block.
func (d *Device) waits(v verb) bool {
	return !d.attr.NeverBlocks || v.peer || v.host || v.patience > 0 || v.name == closeDevice
}

// call runs f on its own goroutine and waits until f returns, the timeout of the verb
// expires or the device fails. A later result is passed to late. A verb that never blocks is called directly.
func call[T any](d *Device, v verb, f func() (T, error), late func(T, error)) answer[T] {
	if !d.waits(v) {
		return direct(d, v, f)
	}
	p := newPatience(cmp.Or(v.patience, d.opts.VerbTimeout))
	if v.host {
		p.excuses = int(d.opts.HostStuck/d.opts.HostTimeout) - 1
	}
	defer p.timer.Stop()
	if err := d.admit(p, v); err != nil {
		return answer[T]{err: d.wrap(v.name, err), fate: fateRefused}
	}
	c := &flight[T]{answered: make(chan answer[T], 1), place: d.places(v)}
	if v.peer {
		c.overstays = time.AfterFunc(d.opts.AHStuck, func() { c.overstay(d) })
	}
	go func() {
		val, err := f()
		d.note(err)
		if v.peer {
			c.overstays.Stop()
		}
		d.mu.Lock()
		<-c.place
		c.place = nil
		d.mu.Unlock()
		if !c.land(d, answer[T]{val: val, err: err}) {
			late(val, err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.drop(v.on)
		d.leave()
	}()
	return c.wait(d, v, p)
}

// direct calls f, which does not block.
func direct[T any](d *Device, v verb, f func() (T, error)) answer[T] {
	if err := d.Err(); err != nil {
		return answer[T]{err: d.wrap(v.name, err), fate: fateRefused}
	}
	d.mu.Lock()
	hold(v.on)
	d.inside++
	d.mu.Unlock()
	val, err := f()
	d.note(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(v.on)
	d.leave()
	return answer[T]{val: val, err: err}
}

// admit waits for a place among the verbs in the backend. If there is none within the
// timeout, the device fails, unless the verb waits for a peer or is excused.
func (d *Device) admit(p *patience, v verb) error {
	for {
		if err := d.Err(); err != nil {
			return err
		}
		select {
		case d.places(v) <- struct{}{}:
			d.mu.Lock()
			defer d.mu.Unlock()
			hold(v.on)
			d.inside++
			return nil
		case <-d.dead:
		case <-p.timer.C:
			switch {
			case !p.spent(), d.excuses(p):
			case v.peer:
				return hca.ErrBusy
			default:
				d.Fail(hca.ErrStuck)
			}
		}
	}
}

// flight is a call in progress.
type flight[T any] struct {
	over      atomic.Bool // the backend has returned in time, or the call is abandoned
	answered  chan answer[T]
	overstays *time.Timer   // nil: the verb does not wait for a peer
	place     chan struct{} // see Device.places; nil once the verb has returned; guarded by Device.mu
}

// overstay runs when a verb has taken longer than any peer can cause. It moves the verb to
// the places of the verbs that do not wait for peers, so that a new peer gets its place.
func (c *flight[T]) overstay(d *Device) {
	select {
	case d.slots <- struct{}{}:
	case <-d.dead:
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.place == nil { // the verb has returned in the meantime
		<-d.slots
		return
	}
	<-c.place
	c.place = d.slots
}

// land passes the answer to the caller. It returns false if the call was abandoned.
func (c *flight[T]) land(d *Device, a answer[T]) bool {
	if c.over.CompareAndSwap(false, true) {
		c.answered <- a
		return true
	}
	d.counts.stuck.Add(-1)
	d.counts.late.Add(1)
	return false
}

// wait returns the answer, or abandons the call when the timeout expires without an excuse or the
// device fails.
func (c *flight[T]) wait(d *Device, v verb, p *patience) answer[T] {
	for {
		select {
		case a := <-c.answered:
			return a
		case <-d.dead:
			return c.abandon(d, v.name, d.Err())
		case <-p.timer.C:
			switch {
			case !p.spent(), d.excuses(p):
			default:
				if !v.peer {
					d.hung.Store(true)
				}
				return c.abandon(d, v.name, hca.ErrStuck)
			}
		}
	}
}

// excuses begins the timeout of a verb again that may wait for a lock of the host, if the device answers
// another verb, which needs no such lock.
func (d *Device) excuses(p *patience) bool {
	if p.excuses <= 0 || !d.answers() {
		return false
	}
	p.excuses--
	p.left = quarters
	p.timer.Reset(p.quarter)
	return true
}

// answers reports whether the device answers alloc_pd: a command to the firmware of hardware, for which
// no driver takes a lock that others hold for long, as rtnl.
func (d *Device) answers() bool {
	pd, err := d.AllocPD()
	if err == nil {
		err = pd.Close()
	}
	return d.Err() == nil && !errors.Is(err, hca.ErrStuck)
}

// abandon gives the call up, unless the answer has just arrived.
func (c *flight[T]) abandon(d *Device, name string, why error) answer[T] {
	d.counts.stuck.Add(1)
	if !c.over.CompareAndSwap(false, true) {
		d.counts.stuck.Add(-1)
		return <-c.answered
	}
	d.counts.abandoned.Add(1)
	return answer[T]{err: d.wrap(name, why), fate: fateAbandoned}
}

// quarters is the number of parts of a timeout. A stall of this process consumes at most one.
const quarters = 4

// patience is a timeout in quarters.
type patience struct {
	timer   *time.Timer
	quarter time.Duration
	left    int
	excuses int // how often the timeout may begin again
}

func newPatience(timeout time.Duration) *patience {
	q := timeout / quarters
	return &patience{timer: time.NewTimer(q), quarter: q, left: quarters}
}

// spent counts an expiry of the timer and reports whether it was the last.
func (p *patience) spent() bool {
	p.left--
	if p.left > 0 {
		p.timer.Reset(p.quarter)
	}
	return p.left <= 0
}
