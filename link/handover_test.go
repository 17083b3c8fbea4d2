package link_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// Another TAP continues the queues of one that is given up: ib0 keeps its carrier, no frame is lost, and
// no inspection finds a foreign queue. The last one leaves ib0 as any other does.
func TestInherit(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	if _, err := tap.SetOffloads(link.AllOffloads); err != nil {
		t.Fatal(err)
	}
	must(t, tap.SetCarrier(true))
	for range 3 {
		handed, fds, err := tap.HandOver()
		must(t, err)
		next, err := link.Inherit(handed, fds)
		must(t, err)
		tap.GiveUp()
		must(t, tap.Close())
		next.Own()
		tap = next
		t.Cleanup(func() { _ = next.Close() })
		if !arrives(t, tap, h) {
			t.Fatal("a frame of the host was lost")
		}
		found, err := tap.Inspect()
		if must(t, err); found.Foreign != 0 || len(found.Restored) > 0 {
			t.Errorf("an inspection has found %+v", found)
		}
		if s, err := tap.State(); err != nil || !s.Carrier {
			t.Errorf("state %+v, %v", s, err)
		}
	}
	if _, _, err := link.Open(spec("ib0")); !errors.Is(err, link.ErrOwned) {
		t.Errorf("another daemon: %v, want link.ErrOwned", err)
	}
	must(t, tap.Close())
	again, adopted := openTAP(t, spec("ib0"))
	if s, err := again.State(); err != nil || !adopted || s.Carrier {
		t.Errorf("after the last Close: adopted %v, %+v, %v", adopted, s, err)
	}
}

// A TAP that was not owned yet leaves everything to the one that it was to continue.
func TestInheritWithoutOwning(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	must(t, tap.SetCarrier(true))
	handed, fds, err := tap.HandOver()
	must(t, err)
	other, err := link.Inherit(handed, fds)
	must(t, err)
	must(t, other.Close())
	if !arrives(t, tap, h) {
		t.Error("a frame of the host was lost")
	}
	if found, err := tap.Inspect(); err != nil || len(found.Restored) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// Descriptors that are not queues of one TAP are refused, and closed.
func TestInheritChecks(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openUp(t)
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	for name, change := range map[string]func(*link.Handed, []int) []int{
		"a wrong name":        func(h *link.Handed, fds []int) []int { h.Name = "../ib0"; return fds },
		"a queue more":        func(h *link.Handed, fds []int) []int { h.Queues++; return fds },
		"no queue":            func(h *link.Handed, fds []int) []int { h.Queues = 0; return fds },
		"a descriptor less":   func(_ *link.Handed, fds []int) []int { must(t, unix.Close(fds[0])); return fds[1:] },
		"impossible offloads": func(h *link.Handed, fds []int) []int { h.Offloads = 1 << 30; return fds },
		"a note elsewhere":    func(h *link.Handed, fds []int) []int { h.Note = "/etc/passwd"; return fds },
		"not a queue": func(_ *link.Handed, fds []int) []int {
			must(t, unix.Dup3(int(os.Stdin.Fd()), fds[0], unix.O_CLOEXEC))
			return fds
		},
		"a queue of no TAP yet": func(_ *link.Handed, fds []int) []int {
			other, err := openTun()
			must(t, err)
			must(t, unix.Dup3(other, fds[0], unix.O_CLOEXEC))
			must(t, unix.Close(other))
			return fds
		},
	} {
		before := files()
		handed, fds, err := tap.HandOver()
		must(t, err)
		fds = change(&handed, fds)
		if _, err := link.Inherit(handed, fds); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if now := files(); now != before {
			t.Errorf("%s: %d descriptors are open, were %d", name, now, before)
		}
	}
}
