package verbs

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"ipoibd/hca"
)

func succeed() error { return nil }

func TestLifeChildrenFirst(t *testing.T) {
	var parent, child life
	parent.adopt()
	if err := parent.close(succeed); !errors.Is(err, hca.ErrBusy) {
		t.Errorf("close with a child: %v", err)
	}
	if err := parent.enter(); err != nil {
		t.Errorf("enter after a refusal: %v", err)
	}
	parent.leave()
	if err := child.close(succeed, &parent); err != nil {
		t.Errorf("close child: %v", err)
	}
	if err := parent.close(succeed); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := parent.enter(); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("enter when closed: %v", err)
	}
}

// An object is destroyed once, and its parent's count decreases once.
func TestLifeCloseTwice(t *testing.T) {
	var parent, child life
	parent.adopt()
	destroyed := 0
	for range 2 {
		if err := child.close(func() error { destroyed++; return nil }, &parent); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if destroyed != 1 || parent.children.Load() != 0 {
		t.Errorf("destroyed %d times, %d children left", destroyed, parent.children.Load())
	}
}

// An object whose destroy fails stays alive, unless the device is gone.
func TestLifeDestroyFails(t *testing.T) {
	for _, tt := range []struct{ destroy, close, enter error }{
		{hca.ErrBusy, hca.ErrBusy, nil},
		{hca.ErrInvalid, hca.ErrInvalid, nil},
		{hca.ErrIO, nil, hca.ErrClosed},
	} {
		var l life
		if err := l.close(func() error { return tt.destroy }); !errors.Is(err, tt.close) {
			t.Errorf("close with %v: %v, want %v", tt.destroy, err, tt.close)
		}
		err := l.enter()
		if !errors.Is(err, tt.enter) {
			t.Errorf("enter after %v: %v, want %v", tt.destroy, err, tt.enter)
		}
		if err == nil {
			l.leave()
		}
	}
}

// Close waits until no call uses the object, and refuses new calls from its start on.
func TestLifeCloseWaits(t *testing.T) {
	var l life
	if err := l.enter(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	var destroyed atomic.Bool
	go func() { done <- l.close(func() error { destroyed.Store(true); return nil }) }()
	for l.enter() == nil { // until close waits for this call
		l.leave()
		runtime.Gosched()
	}
	if destroyed.Load() {
		t.Error("the object was destroyed during a call")
	}
	l.leave()
	if err := <-done; err != nil || !destroyed.Load() {
		t.Errorf("close: %v, destroyed %v, want true after a successful close", err, destroyed.Load())
	}
}

// A destroy that hangs does not block other callers, and after a failed destroy the
// object accepts calls again.
func TestLifeDestroyHangs(t *testing.T) {
	var l life
	hangs, end := make(chan struct{}), make(chan error)
	done := make(chan error)
	go func() {
		done <- l.close(func() error { close(hangs); return <-end })
	}()
	<-hangs
	if err := l.enter(); !errors.Is(err, hca.ErrClosed) {
		t.Errorf("enter while destroy hangs: %v", err)
	}
	end <- hca.ErrBusy
	if err := <-done; !errors.Is(err, hca.ErrBusy) {
		t.Errorf("close: %v, want the error of destroy, ErrBusy", err)
	}
	if err := l.enter(); err != nil {
		t.Errorf("enter after a failed destroy: %v, want success", err)
	}
}
