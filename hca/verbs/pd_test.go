//go:build cgo && linux && !vm

package verbs

import (
	"errors"
	"testing"

	"ipoibd/hca"
)

// region is memory whose deregistration returns err.
type region struct {
	hca.MR
	mem    []byte
	err    error
	closed int
}

func (r *region) Bytes() []byte { return r.mem }

func (r *region) Close() error {
	r.closed++
	return r.err
}

// A queue pair gets memory that another one has left, if there is enough. The rest is deregistered with the domain, and tried
// again if that fails.
func TestHeadersAreReused(t *testing.T) {
	small, large := &region{mem: make([]byte, 10)}, &region{mem: make([]byte, 20), err: hca.ErrBusy}
	var h headers
	if got := h.take(1); got != nil {
		t.Fatalf("took %v from nothing", got)
	}
	h.put(small)
	h.put(large)
	if got := h.take(11); got != large {
		t.Errorf("took %v for 11 bytes, want the memory of 20", got)
	}
	if got := h.take(11); got != nil {
		t.Errorf("took %v for 11 bytes, want none", got)
	}
	h.put(large)
	if err := h.close(); !errors.Is(err, hca.ErrBusy) {
		t.Errorf("close: %v, want the error of the busy memory", err)
	}
	large.err = nil
	if err := h.close(); err != nil || small.closed != 1 || large.closed != 2 {
		t.Errorf("close again: %v; deregistered %d and %d times, want 1 and 2", err, small.closed, large.closed)
	}
	if got := h.take(1); got != nil {
		t.Errorf("took %v, which is closed", got)
	}
}
