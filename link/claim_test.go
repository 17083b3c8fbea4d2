package link

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// A queue that was attached while another process's queue had no virtio header has none
// either. It is not kept, even when it is the only queue by now.
func TestQueueWithoutHeaderIsNotKept(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if err := mustOpen(t, "ib0").Close(); err != nil {
		t.Fatal(err)
	}
	stranger, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq("ib0")
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(stranger, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	nl, err := openRtnl()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.close()
	c := claim{rtnl: nl, spec: Spec{Name: "ib0"}}
	tap, err := newTAP(Spec{Name: "ib0"}, nl)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.NewFile(uintptr(stranger), "").Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.takePossession(tap); !errors.Is(err, ErrOwned) || !c.again {
		t.Errorf("takePossession = %v, again %t; want ErrOwned and another try", err, c.again)
	}
	if err := tap.tun.close(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, "ib0").Remove(); err != nil {
		t.Errorf("the next try: %v", err)
	}
}
