package guard

import (
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// verb is how a call of the backend is made.
type verb struct {
	name     string        // as in libibverbs, without the prefix
	on       []*object     // that it works on: the backend keeps them until it returns
	patience time.Duration // Options.VerbTimeout when 0
	peer     bool          // it waits for a peer: up to Options.AHStuck the device is not to blame
}

// places are those that a verb takes one of. Peers that are slow leave the
// device's own verbs theirs.
func (d *Device) places(v verb) chan struct{} {
	if v.peer {
		return d.peers
	}
	return d.slots
}

// fate is what became of a call.
type fate uint8

const (
	fateAnswered  fate = iota // the backend answered in time
	fateRefused               // the backend was not asked: the device has failed
	fateAbandoned             // the caller is released, the answer comes late or never
)

type answer[T any] struct {
	val  T
	err  error
	fate fate
}

// ask is call for a verb that makes nothing that must be released.
func ask[T any](d *Device, v verb, f func() (T, error)) (T, error) {
	a := call(d, v, f, func(T, error) {})
	return a.val, a.err
}

// call runs f on a goroutine of its own, for as long as the verb's patience
// lasts and the device is healthy. An answer that comes later goes to late.
func call[T any](d *Device, v verb, f func() (T, error), late func(T, error)) answer[T] {
	p := newPatience(v.patience, d.opts.VerbTimeout)
	defer p.stop()
	if err := d.admit(p, v); err != nil {
		return answer[T]{err: d.wrap(v.name, err), fate: fateRefused}
	}
	c := newFlight[T]()
	c.place = d.places(v)
	if v.peer {
		c.overstays = time.AfterFunc(d.opts.AHStuck, func() { c.overstay(d) })
	}
	go c.run(d, v, f, late)
	return c.wait(d, v.name, p, d.dead)
}

// admit takes a place among the verbs in the backend. That all are stuck is a
// failure of the device, unless it is peers that are waited for.
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
			case !p.spent():
			case v.peer:
				return hca.ErrBusy
			default:
				d.Fail(ErrStuck)
			}
		}
	}
}

// flight is a call under way.
type flight[T any] struct {
	over      atomic.Bool // the answer is in time, or the caller is released
	answered  chan answer[T]
	overstays *time.Timer   // nil: the verb does not wait for a peer
	place     chan struct{} // of Device.places; nil once the verb has returned; guarded by Device.mu
}

func newFlight[T any]() *flight[T] { return &flight[T]{answered: make(chan answer[T], 1)} }

func (c *flight[T]) run(d *Device, v verb, f func() (T, error), late func(T, error)) {
	val, err := f()
	_ = d.note(err)
	c.vacate(d)
	if !c.land(d, answer[T]{val: val, err: err}) {
		late(val, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(v.on)
	d.leave()
}

func (c *flight[T]) vacate(d *Device) {
	if c.overstays != nil {
		c.overstays.Stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	<-c.place
	c.place = nil
}

// overstay moves a verb that no peer can have delayed for so long to the places of the
// device's other verbs, so that a new peer gets its place.
func (c *flight[T]) overstay(d *Device) {
	select {
	case d.slots <- struct{}{}:
	case <-d.dead:
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.place == nil { // it has returned meanwhile
		<-d.slots
		return
	}
	<-c.place
	c.place = d.slots
}

// land hands the answer over; false when nobody waits for it any more.
func (c *flight[T]) land(d *Device, a answer[T]) bool {
	if c.over.CompareAndSwap(false, true) {
		c.answered <- a
		return true
	}
	d.counts.stuck.Add(-1)
	d.counts.late.Add(1)
	return false
}

// wait gives the answer, or releases the caller when its patience is spent or
// quit is closed.
func (c *flight[T]) wait(d *Device, name string, p *patience, quit <-chan struct{}) answer[T] {
	for {
		select {
		case a := <-c.answered:
			return a
		case <-quit:
			return c.abandon(d, name, d.Err())
		case <-p.timer.C:
			if p.spent() {
				return c.abandon(d, name, ErrStuck)
			}
		}
	}
}

// abandon releases the caller, unless the answer is there after all.
func (c *flight[T]) abandon(d *Device, name string, why error) answer[T] {
	d.counts.stuck.Add(1)
	if !c.over.CompareAndSwap(false, true) {
		d.counts.stuck.Add(-1)
		return <-c.answered
	}
	d.counts.abandoned.Add(1)
	return answer[T]{err: d.wrap(name, why), fate: fateAbandoned}
}

// quarters of a timeout: a stall of this process uses up one of them.
const quarters = 4

// patience measures a timeout in quarters.
type patience struct {
	timer   *time.Timer
	quarter time.Duration
	left    int
}

// newPatience makes the patience of a verb; otherwise is what it has when its
// own is 0.
func newPatience(own, otherwise time.Duration) *patience {
	if own == 0 {
		own = otherwise
	}
	q := own / quarters
	return &patience{timer: time.NewTimer(q), quarter: q, left: quarters}
}

// spent takes a tick of the timer and reports whether it was the last.
func (p *patience) spent() bool {
	p.left--
	if p.left > 0 {
		p.timer.Reset(p.quarter)
	}
	return p.left <= 0
}

func (p *patience) stop() { p.timer.Stop() }
