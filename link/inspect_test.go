package link

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// An inspection that fails returns what it restored before, and nothing that it
// could not restore.
func TestFailedInspectionReturnsWhatItRestored(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	err := tap.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) })
	if err != nil {
		t.Fatal(err)
	}
	tap.mac = [6]byte{1} // a group's: the kernel refuses it
	f, err := tap.Inspect()
	if !errors.Is(err, unix.EADDRNOTAVAIL) || len(f.Restored) != 1 || f.Restored[0] != (Change{PropertyPersistence, "off"}) {
		t.Errorf("Inspect = %+v, %v; want the persistence and EADDRNOTAVAIL", f, err)
	}
}

// A queue that is gone can have bounded what every queue may have under way.
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
		t.Fatalf("the kernel has %d", size())
	}
	if _, err := tap.Inspect(); err != nil || size() != before {
		t.Errorf("%d after Inspect, %v; want %d", size(), err, before)
	}
}
