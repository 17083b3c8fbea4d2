//go:build cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// maxPoll bounds the completions that one call of libibverbs returns: 12 KiB of scratch.
const maxPoll = 256

// CQ is a completion queue with a completion channel of its own.
type CQ struct {
	life
	dev     *Device
	id      hca.ObjectID
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	waiter  *waiter

	// Used only by the goroutine that arms and waits.
	armed     bool // an event may be pending, or arrive
	fetchFunc func(uintptr) bool
	fetchErr  syscall.Errno

	mu      sync.Mutex
	scratch []cWC    // C memory
	kept    []hca.WC // polled by purge and not yet returned
	senders []*QP    // whose sends complete here

	broken atomic.Bool // polling failed
}

var _ hca.CQ = (*CQ)(nil)

// CreateCQ implements [hca.Device].
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	if spec.Entries < 1 || spec.Entries > d.attr.MaxCQE {
		return nil, refused("create_cq", d.attr.Name, hca.ErrRange)
	}
	if err := d.enter(); err != nil {
		return nil, refused("create_cq", d.attr.Name, err)
	}
	defer d.leave()
	c := &CQ{dev: d}
	c.fetchFunc = c.fetch
	if err := c.create(spec.Entries); err != nil {
		c.free()
		return nil, err
	}
	d.adopt()
	return c, nil
}

// create creates the parts of a CQ. After an error the caller must call free.
func (c *CQ) create(entries int) (err error) {
	on := c.dev.attr.Name
	if c.channel, err = C.shim_create_channel(c.dev.ctx); c.channel == nil {
		return failedNull("create_cq", on, err)
	}
	gen := generations.Add(1)
	c.id = hca.ObjectID{Kind: hca.KindCQ, Num: gen, Generation: gen}
	if c.waiter, err = newWaiter(int(c.channel.fd), fmt.Sprintf("events of CQ %d", gen)); err != nil {
		return refused("create_cq", on, fmt.Errorf("%w: %w", hca.ErrNoMemory, err))
	}
	if c.cq, err = C.shim_create_cq(c.channel, C.int(entries), C.uint32_t(gen)); c.cq == nil {
		return failedNull("create_cq", on, err)
	}
	n := min(entries, maxPoll)
	c.scratch = unsafe.Slice((*cWC)(C.calloc(C.size_t(n), C.sizeof_struct_ibv_wc)), n)
	return nil
}

// free frees the parts that create has created, except the CQ itself.
func (c *CQ) free() {
	if c.waiter != nil {
		_ = c.waiter.close()
	}
	if c.channel != nil && C.shim_destroy_channel(c.channel) != 0 {
		_ = unix.Close(int(c.channel.fd)) // libibverbs keeps the channel, like its CQ
	}
	C.free(unsafe.Pointer(unsafe.SliceData(c.scratch)))
}

// ID implements [hca.CQ].
func (c *CQ) ID() hca.ObjectID { return c.id }

// Poll implements [hca.CQ].
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	if err := c.enter(); err != nil {
		return 0, refused("poll_cq", c.dev.attr.Name, err)
	}
	defer c.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.kept)
	c.kept = c.kept[n:]
	n += c.pollDevice(wc[n:])
	if n == 0 && c.broken.Load() {
		return 0, refused("poll_cq", c.dev.attr.Name, hca.ErrCQ)
	}
	return n, nil
}

// pollDevice polls up to len(wc) completions of the device. c.mu is held.
func (c *CQ) pollDevice(wc []hca.WC) (n int) {
	for n < len(wc) && !c.broken.Load() {
		want := min(len(wc)-n, len(c.scratch))
		got := int(C.shim_poll_cq(c.cq, C.int(want), &c.scratch[0]))
		if got < 0 {
			c.broken.Store(true)
			break
		}
		for i := range c.scratch[:got] {
			if wc[n] = completion(&c.scratch[i]); c.translate(&wc[n]) {
				n++
			}
		}
		if got < want {
			break
		}
	}
	return n
}

// translate turns the completion of a request of a send queue into its send's. It
// returns false if the caller gets none. A CQ may also serve receives of the same queue pair.
// The number of the request then distinguishes them, because a failed completion has no opcode.
func (c *CQ) translate(wc *hca.WC) bool {
	for _, q := range slices.Backward(c.senders) { // a reused QPN belongs to the newest QP
		if q.num == wc.QPN {
			return q.recvCQ == c && !q.sender.book.has(wc.ID) || q.sender.book.complete(wc)
		}
	}
	return true
}

// attach makes the CQ translate the completions of a QP's sends.
func (c *CQ) attach(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.senders = append(c.senders, q)
}

func (c *CQ) detach(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.senders = slices.DeleteFunc(c.senders, func(s *QP) bool { return s == q })
}

// purge drops the completions of a QP that is reset or destroyed, because not every
// provider does that (librxe does not).
func (c *CQ) purge(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.kept
	batch := make([]hca.WC, len(c.scratch))
	for n := len(batch); n == len(batch); {
		n = c.pollDevice(batch)
		all = append(all, batch[:n]...)
	}
	c.kept = slices.DeleteFunc(all, func(wc hca.WC) bool { return wc.QPN == q.num })
	if q.sendCQ == c {
		q.sender.book.drop()
	}
}

// Arm implements [hca.CQ]. It discards the event of an earlier Arm without a Wait, because
// the caller has polled since.
func (c *CQ) Arm() error {
	if err := c.enter(); err != nil {
		return refused("req_notify_cq", c.dev.attr.Name, err)
	}
	defer c.leave()
	if c.broken.Load() {
		return refused("req_notify_cq", c.dev.attr.Name, hca.ErrCQ)
	}
	for c.armed && C.shim_cq_event(c.channel) == 0 {
	}
	c.armed = true
	return failed("req_notify_cq", c.dev.attr.Name, errno(C.shim_arm_cq(c.cq)))
}

// Wait implements [hca.CQ].
func (c *CQ) Wait(until time.Time) error {
	if c.broken.Load() {
		return refused("get_cq_event", c.dev.attr.Name, hca.ErrCQ)
	}
	c.fetchErr = syscall.EAGAIN
	err := c.waiter.wait(until, c.fetchFunc)
	switch {
	case err != nil || c.fetchErr == syscall.EAGAIN:
		return refused("get_cq_event", c.dev.attr.Name, err)
	case c.fetchErr == 0:
		c.armed = false
	}
	return failed("get_cq_event", c.dev.attr.Name, c.fetchErr)
}

// fetch reads an event. It returns false if there is none yet.
func (c *CQ) fetch(uintptr) bool {
	c.fetchErr = errno(C.shim_cq_event(c.channel))
	return c.fetchErr != syscall.EAGAIN
}

// Wake implements [hca.CQ].
func (c *CQ) Wake() { c.waiter.wake() }

// Close implements [hca.CQ]. The kernel discards unread events together with the CQ, and
// libibverbs waits until the read ones are acknowledged. A concurrent Wait therefore does
// not delay Close, and does not use the CQ afterwards.
func (c *CQ) Close() error {
	return refused("destroy_cq", c.dev.attr.Name, c.close(func() error {
		err := failed("destroy_cq", c.dev.attr.Name, errno(C.shim_destroy_cq(c.cq)))
		if err == nil || errors.Is(err, hca.ErrIO) {
			c.free()
		}
		return err
	}, &c.dev.life))
}
