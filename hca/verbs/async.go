//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"

	"ipoibd/hca"
)

// asyncReader reads the asynchronous events of a context.
type asyncReader struct {
	*waiter
	unknown atomic.Uint64 // events of types that are not in the contract
}

// NextEvent implements [hca.Device]. The kernel queues the events that are not yet read.
// The call that reads an event also acknowledges it, so that the event does not prevent
// its object from being destroyed.
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	stop := context.AfterFunc(ctx, d.async.wake)
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return hca.AsyncEvent{}, err
		}
		raw, err := d.readEvent()
		if err != nil {
			return hca.AsyncEvent{}, refused("get_async_event", d.attr.Name, err)
		}
		if raw.err == 0 {
			if ev, ok := asyncEvent(uint32(raw._type), uint32(raw.num), uint32(raw.generation)); ok {
				return ev, nil
			}
			d.async.unknown.Add(1)
		}
	}
}

// readEvent waits for an event. After a wake-up without an event, raw.err is EAGAIN.
func (d *Device) readEvent() (raw C.struct_shim_event, err error) {
	raw.err = C.int(syscall.EAGAIN)
	err = d.async.wait(time.Time{}, func(uintptr) bool {
		raw = C.shim_async_event(d.ctx)
		return errno(raw.err) != syscall.EAGAIN
	})
	if err == nil && errno(raw.err) != syscall.EAGAIN {
		err = failed("get_async_event", d.attr.Name, errno(raw.err))
	}
	return raw, err
}
