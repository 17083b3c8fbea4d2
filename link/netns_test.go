package link_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// named gives a namespace a path as `ip netns` does, which outlives the test's own descriptor.
func named(t *testing.T, ns *nstest.Namespace) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pod")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(ns.Path(), path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // the test may have done so
	return path
}

// A namespace that another process has opened serves in place of its path, which this process may not be
// able to open. Any other file, the own namespace, and a path that leads elsewhere, are refused.
func TestLentThroughADescriptor(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	pod, other := nstest.New(t), nstest.New(t)
	path, elsewhere := named(t, pod), named(t, other)
	open := func(path string) *os.File {
		f, err := os.Open(path)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	spec := link.Spec{Name: "net1", Netns: path, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1400}
	for what, f := range map[string]*os.File{
		"a file": open("/proc/self/maps"), "a device": open("/dev/zero"), "a mount namespace": open("/proc/self/ns/mnt"),
		"another pod's": open(elsewhere),
	} {
		spec.Namespace = f
		if _, _, err := link.Open(spec); !errors.Is(err, link.ErrNoNamespace) {
			t.Errorf("%s: %v", what, err)
		}
	}
	own := spec
	own.Netns, own.Namespace = "/proc/thread-self/ns/net", open("/proc/thread-self/ns/net")
	if _, _, err := link.Open(own); !errors.Is(err, link.ErrNoNamespace) {
		t.Errorf("the own one: %v", err)
	}
	if got := linksIn(pod) + links(); got != "lolo" {
		t.Fatalf("interfaces: %s", got)
	}
	spec.Namespace = open(path)
	tap, _, err := link.Open(spec)
	must(t, err)
	if home, there := links(), linksIn(pod); home != "lo" || there != "lo net1" {
		t.Errorf("here: %s; there: %s", home, there)
	}
	must(t, tap.Remove())
}

func links() (names string) {
	list, _ := net.Interfaces()
	for _, l := range list {
		names += " " + l.Name
	}
	return strings.TrimSpace(names)
}

func linksIn(ns *nstest.Namespace) (names string) {
	ns.Do(func() { names = links() })
	return names
}

// An interface is created in another namespace, and a later process adopts it there with its address.
// It is never in the namespace of the process. When the path of the namespace is gone, it is deleted,
// although other processes still use the namespace.
func TestLent(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	pod := nstest.New(t)
	path := named(t, pod)
	spec := link.Spec{Name: "net1", Netns: path, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1400, Queues: 2}

	spec.Existing = true
	if _, _, err := link.Open(spec); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("adopt what does not exist: %v", err)
	}
	spec.Existing = false
	tap, adopted, err := link.Open(spec)
	must(t, err)
	if home, there := links(), linksIn(pod); adopted || home != "lo" || there != "lo net1" {
		t.Errorf("adopted %t; here: %s; there: %s", adopted, home, there)
	}
	pod.Run("ip", "addr", "add", "10.9.0.1/24", "dev", "net1")
	if err := link.DeleteIn(path, "net1"); !errors.Is(err, link.ErrOwned) {
		t.Errorf("delete it while it is held: %v", err)
	}
	must(t, tap.Close())

	spec.Existing = true
	tap, adopted, err = link.Open(spec)
	must(t, err)
	states, err := tap.Watch(t.Context())
	must(t, err)
	must(t, tap.SetCarrier(true))
	must(t, tap.BringUp())
	awaitState(t, states, "up, with its address and carrier", func(s link.State) bool {
		return adopted && s.Up && s.Carrier && len(s.Addrs) > 0 && s.Addrs[0].String() == "10.9.0.1/24"
	})
	_, err = tap.Inspect()
	must(t, err)
	if tap.Elsewhere() {
		t.Error("in its own namespace, it is said to be elsewhere")
	}

	must(t, unix.Unmount(path, unix.MNT_DETACH))
	if _, err := tap.Inspect(); !errors.Is(err, link.ErrGone) {
		t.Errorf("inspect after the path has gone: %v", err)
	}
	awaitState(t, states, "gone", func(s link.State) bool { return !s.Present })
	if there := linksIn(pod); there != "lo" {
		t.Errorf("in the namespace without a path: %s", there)
	}
	must(t, tap.Close())
}

// DeleteIn deletes what a daemon has left in a namespace, and nothing that is not ipoibd's.
func TestDeleteIn(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	pod := nstest.New(t)
	path := named(t, pod)
	tap, _, err := link.Open(link.Spec{Name: "net1", Netns: path, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1400})
	must(t, err)
	must(t, tap.Close())
	must(t, link.DeleteIn(path, "net1"))
	if err := link.DeleteIn(path, "net1"); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("delete it twice: %v", err)
	}
	if err := link.DeleteIn(path, "lo"); !errors.Is(err, link.ErrNameTaken) {
		t.Errorf("delete lo: %v", err)
	}
	if there := linksIn(pod); there != "lo" {
		t.Errorf("left: %s", there)
	}
}

// A path that does not lead to a network namespace is refused, without blocking.
func TestNoNamespace(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{file, fifo, dir, file + "/x", "/nonexistent", "/dev/null", "/proc/self/ns/uts", "/proc/self/ns"} {
		_, _, err := link.Open(link.Spec{Name: "net1", Netns: path, MAC: [6]byte{2}, MTU: 1400})
		if !errors.Is(err, link.ErrNoNamespace) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
