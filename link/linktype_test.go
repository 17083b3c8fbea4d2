package link

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// A user who attaches before the interface has an owner, changes its link type and
// detaches before the queues are counted, does not spoil the interface.
func TestCreationBeginsAgainWhereTheLinkTypeWasChanged(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, kind := range []int{unix.ARPHRD_IEEE80211, unix.ARPHRD_HIPPI} { // with MACs of no and of 6 bytes
		updates, stop := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
		if err := netlink.LinkSubscribe(updates, stop); err != nil {
			t.Fatal(err)
		}
		nl, err := openRtnl()
		if err != nil {
			t.Fatal(err)
		}
		c := claim{rtnl: nl, spec: Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500}, make: true}
		nl.mu.Lock() // between the creation and the count of the queues
		done := make(chan error)
		go func() { done <- c.create() }()
		made := (<-updates).Attrs().Name
		close(stop)
		fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		req, err := unix.NewIfreq(made)
		if err != nil {
			t.Fatal(err)
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			t.Fatal(err)
		}
		if err := unix.IoctlSetInt(fd, unix.TUNSETLINK, kind); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		nl.mu.Unlock()
		if err := <-done; err == nil || !c.again {
			t.Errorf("type %d: create = %v, again %t", kind, err, c.again)
		}
		tap, _, err := Open(c.spec)
		if err != nil {
			t.Errorf("type %d: the next start: %v", kind, err)
		}
		l, err := nl.byName("ib0")
		if err != nil || l == nil {
			t.Fatalf("type %d: %v, %v", kind, l, err)
		}
		if got := l.Attrs().EncapType; got != "ether" {
			t.Errorf("type %d: ib0 has the link type %s", kind, got)
		}
		if tap != nil {
			tap.Close()
		}
		if err := nl.deleteLink(l.Attrs().Index); err != nil {
			t.Fatal(err)
		}
		nl.close()
	}
}
