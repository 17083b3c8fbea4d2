package kernel

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// In the namespace of the calling thread f runs on that thread, so no privilege is needed. In another one it
// runs on a thread that is there, and the calling thread stays where it is.
func TestInNamespace(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	here := namespace(t)
	thread := unix.Gettid()
	if err := InNamespace(here, func() { thread -= unix.Gettid() }); err != nil || thread != 0 {
		t.Errorf("here: another thread, or %v", err)
	}

	other := nstest.New(t)
	var there *os.File
	other.Do(func() { there = namespace(t) })
	var seen bool
	if err := InNamespace(there, func() { seen = same(t, there, namespace(t)) }); err != nil || !seen {
		t.Errorf("f saw its namespace: %t, %v", seen, err)
	}
	if !same(t, here, namespace(t)) {
		t.Error("the calling thread is in another namespace now")
	}
}

// What is no namespace is not entered, and f is not called.
func TestInNamespaceRefusesOtherFiles(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	err = InNamespace(null, func() { t.Error("f was called") })
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v, want EINVAL", err)
	}
}

func namespace(t *testing.T) *os.File {
	t.Helper()
	ns, err := Namespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func same(t *testing.T, a, b *os.File) bool {
	t.Helper()
	yes, err := sameFile(a, b)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}
