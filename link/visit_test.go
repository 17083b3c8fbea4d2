package link

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// The interface may be renamed or moved, and another may take its name, between the steps
// of a visit. The visit does not mistake the other interface for it, even if the other one
// belongs to ipoibd and has the same MAC.
func TestVisitIsNotMisled(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	elsewhere := nstest.New(t)
	for _, c := range []struct {
		name  string
		leave func(ns string)
	}{
		{"renamed", func(string) { ip(t, "link", "set", "ib0", "name", "away") }},
		{"moved", func(ns string) { ip(t, "link", "set", "ib0", "netns", ns, "name", "away") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			tap := mustOpen(t, "ib0")
			other := mustOpen(t, "other")
			tap.dev.nl.mu.Lock() // between asking the queue and asking netlink
			done := make(chan error)
			go func() { done <- tap.SetMTU(1300) }()
			time.Sleep(100 * time.Millisecond)
			c.leave(elsewhere.Path())
			ip(t, "link", "set", "other", "name", "ib0")
			tap.dev.nl.mu.Unlock()
			if err := <-done; err != nil {
				t.Errorf("SetMTU: %v", err)
			}
			for _, x := range []struct {
				tap  *TAP
				want int
			}{{tap, 1300}, {other, 1500}} {
				if s, err := x.tap.State(); err != nil || s.MTU != x.want {
					t.Errorf("%s has MTU %d, %v; want %d", s.Name, s.MTU, err, x.want)
				}
			}
			for _, tap := range []*TAP{tap, other} {
				if err := tap.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A visit gives up on an interface that keeps changing its name.
func TestVisitGivesUp(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	tries := 0
	err := tap.dev.visit(func(*rtnl, netlink.Link) error { tries++; return unix.ENODEV })
	if !errors.Is(err, errElusive) || tries != visitTries {
		t.Errorf("visit = %v after %d tries, want %v after %d", err, tries, errElusive, visitTries)
	}
}

func mustOpen(t *testing.T, name string) *TAP {
	t.Helper()
	tap, _, err := Open(Spec{Name: name, MAC: [6]byte{2}, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tap.Remove() }) // it may be closed or deleted already
	return tap
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}
