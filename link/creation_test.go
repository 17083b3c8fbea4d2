package link

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// intruded creates ib0 while another user attaches a queue to the interface before it has
// an owner, and calls intrude with that queue and the temporary name of the interface. It
// closes the queue if detach is set. It returns the claim after the failed creation.
func intruded(t *testing.T, nl *rtnl, detach bool, intrude func(fd int, name string) error) claim {
	t.Helper()
	updates, stop := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, stop); err != nil {
		t.Fatal(err)
	}
	c := claim{rtnl: nl, spec: Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500}, make: true}
	nl.mu.Lock() // stops create between the creation and the count of the queues
	done := make(chan error)
	go func() { done <- c.create() }()
	name := (<-updates).Attrs().Name
	close(stop)
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err == nil {
		err = intrude(fd, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if detach {
		unix.Close(fd)
	} else {
		t.Cleanup(func() { unix.Close(fd) })
	}
	nl.mu.Unlock()
	if err := <-done; err == nil || !c.again {
		t.Errorf("create = %v, again %t", err, c.again)
	}
	return c
}

// When another process attaches to an interface before it has its name, the interface is
// deleted and the creation starts over.
func TestCreationBeginsAgainWhereAnotherProcessAttaches(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nl, err := openRtnl()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.close()
	var made string
	intruded(t, nl, false, func(_ int, name string) error { made = name; return nil })
	if !strings.HasPrefix(made, temporaryPrefix) {
		t.Errorf("its temporary name is %s, want %s...", made, temporaryPrefix)
	}
	if l, err := nl.byName(made); l != nil || err != nil {
		t.Errorf("%s is still there: %v, %v", made, l, err)
	}
	_ = mustOpen(t, "ib0")
}

// A user who attaches before the interface has an owner, changes its link type and
// detaches before the queues are counted, does not spoil the interface.
func TestCreationBeginsAgainWhereTheLinkTypeWasChanged(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, kind := range []int{unix.ARPHRD_IEEE80211, unix.ARPHRD_HIPPI} { // with MACs of no and of 6 bytes
		nl, err := openRtnl()
		if err != nil {
			t.Fatal(err)
		}
		c := intruded(t, nl, true, func(fd int, _ string) error { return unix.IoctlSetInt(fd, unix.TUNSETLINK, kind) })
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
