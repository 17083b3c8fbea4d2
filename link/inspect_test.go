package link

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
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
	err := tap.tun.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) })
	if err != nil {
		t.Fatal(err)
	}
	tap.mac = [6]byte{1} // a group address, which the kernel refuses
	f, err := tap.Inspect()
	if !errors.Is(err, unix.EADDRNOTAVAIL) || len(f.Restored) != 1 || f.Restored[0] != (Change{PropertyPersistence, "off"}) {
		t.Errorf("Inspect = %+v, %v; want the persistence and EADDRNOTAVAIL", f, err)
	}
}

// A change that comes during an inspection, after its check, is reported by the next one.
func TestChangeDuringAnInspectionIsReported(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap := mustOpen(t, "ib0")
	for what, change := range map[Property]func(fd int) error{
		PropertyHeader:      func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, 12) },
		PropertyPersistence: func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) },
	} {
		if restored, err := tap.tun.restore(); err != nil || len(restored) != 0 {
			t.Fatalf("restoreQueue = %+v, %v", restored, err)
		}
		must(t, tap.tun.control(change))
		var f Findings
		must(t, tap.dev.visit(func(r *rtnl, l netlink.Link) error { return tap.inspectLink(r, l, &f) }))
		next, err := tap.Inspect()
		if restored := append(f.Restored, next.Restored...); err != nil || len(restored) != 1 || restored[0].What != what {
			t.Errorf("%s: restored %+v, %v", what, restored, err)
		}
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
		err := tap.tun.control(func(fd int) (err error) { n, err = unix.IoctlGetInt(fd, unix.TUNGETSNDBUF); return err })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := size()
	if err := tap.tun.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETSNDBUF, 1) }); err != nil {
		t.Fatal(err)
	}
	if size() != 1 {
		t.Fatalf("the send buffer is %d, want 1", size())
	}
	if _, err := tap.Inspect(); err != nil || size() != before {
		t.Errorf("the send buffer is %d after Inspect, %v; want %d", size(), err, before)
	}
}
