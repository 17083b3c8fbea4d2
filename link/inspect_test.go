package link

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// A failed inspection returns the changes that it has restored, and none that it could
// not restore.
func TestFailedInspectionReturnsWhatItRestored(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	err := tap.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) })
	if err != nil {
		t.Fatal(err)
	}
	tap.mac = [6]byte{1} // a group address, which the kernel refuses
	f, err := tap.Inspect()
	if !errors.Is(err, unix.EADDRNOTAVAIL) || len(f.Restored) != 1 || f.Restored[0] != (Change{PropertyPersistence, "off"}) {
		t.Errorf("Inspect = %+v, %v; want the persistence and EADDRNOTAVAIL", f, err)
	}
}

// A queue that is gone may have changed the send buffer of the interface, which applies
// to all queues. An inspection restores it.
func TestInspectionRestoresTheSendBuffer(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	size := func() (n int) {
		err := tap.control(func(fd int) (err error) { n, err = unix.IoctlGetInt(fd, unix.TUNGETSNDBUF); return err })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := size()
	if err := tap.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETSNDBUF, 1) }); err != nil {
		t.Fatal(err)
	}
	if size() != 1 {
		t.Fatalf("the send buffer is %d, want 1", size())
	}
	if _, err := tap.Inspect(); err != nil || size() != before {
		t.Errorf("the send buffer is %d after Inspect, %v; want %d", size(), err, before)
	}
}
