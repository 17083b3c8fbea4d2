package link

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// When another process attaches to an interface before it has its name, the interface is
// deleted and the creation starts over.
func TestCreationBeginsAgainWhereAnotherProcessAttaches(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	updates := make(chan netlink.LinkUpdate, 1000)
	if err := netlink.LinkSubscribe(updates, t.Context().Done()); err != nil {
		t.Fatal(err)
	}
	nl, err := openRtnl()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.close()
	c := claim{rtnl: nl, spec: Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500}, make: true}
	nl.mu.Lock() // between the creation and the count of the queues
	done := make(chan error)
	go func() { done <- c.create() }()
	made := (<-updates).Attrs().Name
	if !strings.HasPrefix(made, temporaryPrefix) {
		t.Errorf("its temporary name is %s, want %s...", made, temporaryPrefix)
	}
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(made)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	nl.mu.Unlock()
	if err := <-done; err == nil || !c.again {
		t.Errorf("create = %v, again %t", err, c.again)
	}
	if l, err := nl.byName(made); l != nil || err != nil {
		t.Errorf("%s is still there: %v, %v", made, l, err)
	}
	_ = mustOpen(t, "ib0")
}
