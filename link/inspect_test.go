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
