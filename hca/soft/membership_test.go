package soft

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// lockedHost is a transport on a host where another process can hold the kernel's lock of all interfaces.
type lockedHost struct {
	transport.Transport
	unlocked chan struct{}
	joined   atomic.Int32 // memberships
}

func (h *lockedHost) Join(group netip.Addr) error {
	<-h.unlocked
	h.joined.Add(1)
	return h.Transport.Join(group)
}

func (h *lockedHost) Leave(group netip.Addr) error {
	<-h.unlocked
	h.joined.Add(-1)
	return h.Transport.Leave(group)
}

func lockedBubble(t *testing.T, test func(*rig, *lockedHost)) {
	t.Helper()
	host := &lockedHost{}
	bubble(t, func(c *Config) {
		host.Transport, host.unlocked = c.Transport, make(chan struct{})
		c.Transport = host
	}, func(r *rig) { test(r, host) })
}

var lockedGroup = hca.MulticastGroup{MGID: hca.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))}

// While another process holds the lock, only the attachment to a group waits. A device that answers no
// other verb would be reset (R7).
func TestR07LockedHostDelaysOnlyGroups(t *testing.T) {
	lockedBubble(t, func(r *rig, host *lockedHost) {
		attached := make(chan error, 1)
		go func() { attached <- r.qp.AttachMulticast(lockedGroup) }()
		synctest.Wait()
		if len(attached) > 0 {
			t.Fatal("the attachment did not wait")
		}
		if _, err := r.dev.QueryPort(1); err != nil {
			t.Error(err)
		}
		if _, err := r.qp.Query(); err != nil {
			t.Error(err)
		}
		pd, cq := have(r.dev.AllocPD())(t), have(r.dev.CreateCQ(hca.CQSpec{Entries: 1}))(t)
		for _, c := range []interface{ Close() error }{cq, pd} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		close(host.unlocked)
		if err := <-attached; err != nil {
			t.Error(err)
		}
		if err := r.qp.DetachMulticast(lockedGroup); err != nil {
			t.Error(err)
		}
	})
}

// A QP that leaves a group, and another that joins it soon, do not wait for the lock. Otherwise the group is
// left, once.
func TestR07GroupsLinger(t *testing.T) {
	lockedBubble(t, func(r *rig, host *lockedHost) {
		close(host.unlocked)
		if err := r.qp.AttachMulticast(lockedGroup); err != nil {
			t.Fatal(err)
		}
		host.unlocked = make(chan struct{})
		for range 3 {
			if err := r.qp.DetachMulticast(lockedGroup); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lingerFor - 1)
			if err := r.qp.AttachMulticast(lockedGroup); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if err := r.qp.DetachMulticast(lockedGroup); err != nil {
			t.Fatal(err)
		}
		close(host.unlocked)
		time.Sleep(lingerFor - 1)
		if n := host.joined.Load(); n != 1 {
			t.Errorf("%d memberships before the time is over, want 1", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := host.joined.Load(); n != 0 {
			t.Errorf("%d memberships afterwards, want none", n)
		}
	})
}
