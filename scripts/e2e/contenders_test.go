package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// While the daemon runs, and while it resets its device, other processes that try to
// hold ib0 are refused with the daemon's PID, and traffic continues. If another process
// takes ib0 after a crash, the next start of the daemon names that process.
func TestContendersForTheInterface(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	talk := b.talkTo(a)
	stop := a.contend()
	time.Sleep(time.Second)
	talk.end(0)
	if out, err := a.daemon.command("reset", "device").CombinedOutput(); err != nil {
		t.Fatalf("reset device: %v\n%s", err, out)
	}
	b.waitReaches(a)
	pingAll(a, b)
	stop()
	a.requireLogged("carrier taken down", 0)

	a.daemon.kill()
	tap, err := a.open()
	if err != nil {
		t.Fatalf("opening ib0 after a crash: %v", err)
	}
	requireMistake(t, a.runDaemon("--control", a.dir+"/second.sock"), fmt.Sprintf(`ib0: the interface is in use by another process \(process %d\)`, unix.Getpid()))
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.waitCarrier()
	b.waitReaches(a)
}

// open tries to hold ib0, as another daemon would.
func (h *host) open() (tap *link.TAP, err error) {
	h.tb.Helper()
	h.Do(func() { tap, _, err = link.Open(link.Spec{Name: ifName, MAC: [6]byte{2}, MTU: underlayMTU}) })
	return tap, err
}

// contend keeps trying to hold ib0 until stop. Every try must be refused.
func (h *host) contend() (stop func()) {
	h.tb.Helper()
	ctx, cancel := context.WithCancel(h.tb.Context())
	const contenders = 3
	var ended sync.WaitGroup
	var tries atomic.Int64
	for range contenders {
		ended.Go(func() {
			for ctx.Err() == nil {
				tap, err := h.open()
				tries.Add(1)
				var owned *link.OwnedError
				if !errors.As(err, &owned) || owned.PID != h.daemon.cmd.Process.Pid {
					h.tb.Errorf("Open = %v, want ErrOwned by process %d", err, h.daemon.cmd.Process.Pid)
				}
				if err == nil {
					_ = tap.Close()
				}
			}
		})
	}
	return func() {
		h.tb.Helper()
		cancel()
		ended.Wait()
		if n := tries.Load(); n < contenders {
			h.tb.Errorf("%d tries to hold %s, want %d at least", n, ifName, contenders)
		}
	}
}
