package iface

import (
	"testing"
	"testing/synctest"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/journal"
)

// rebuild ends the interface of a host and puts one with another configuration in its place, which does not run yet.
func (h *testHost) rebuild(change func(*config.Interface)) {
	h.t.Helper()
	h.stopInterface()
	cfg := h.iface.cfg
	change(&cfg)
	next, err := h.iface.Rebuild(cfg, Env{Device: h.dev, Journal: journal.New(), Log: quiet, Lanes: 1})
	if err != nil {
		h.t.Fatal(err)
	}
	h.iface = next
}

// An interface that is rebuilt keeps its peers: the status has them before it runs, and what the host sends first needs
// no resolution. The counts go on.
func TestRebuildKeepsPeers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		was := a.status()
		a.rebuild(func(c *config.Interface) { c.SendWRs = 2 * testSendWRs })
		if s := a.iface.Status(); len(s.Peers) != 1 || s.Peers[0].QPN != b.status().QP.QPN || !s.Peers[0].Used {
			t.Errorf("before it runs: peers %+v", s.Peers)
		}
		a.startInterface()
		a.waitUp()
		synctest.Wait()
		reach(t, a, b)
		s := a.status()
		if n := count(s, "neigh_requests") - count(was, "neigh_requests"); n != 0 || s.SendWRs != 2*testSendWRs {
			t.Errorf("%d requests on the wire; %d slots", n, s.SendWRs)
		}
		if len(s.Peers) != 1 || s.Peers[0].Handle != "ready" || s.Peers[0].TxBytes <= was.Peers[0].TxBytes {
			t.Errorf("peers %+v, were %+v", s.Peers, was.Peers)
		}
	})
}

// On another device, such as one of the same name on another underlay, are other peers.
func TestRebuildOnAnotherDeviceForgetsPeers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.dev = b.dev
		a.rebuild(func(*config.Interface) {})
		if s := a.iface.Status(); len(s.Peers) != 0 {
			t.Errorf("peers %+v", s.Peers)
		}
	})
}

// Peers that were reached from another GID may be out of reach.
func TestRebuildWithAnotherGIDForgetsPeers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.rebuild(func(c *config.Interface) { c.GID = "fe80::1" })
		if s := a.iface.Status(); len(s.Peers) != 0 {
			t.Errorf("peers %+v", s.Peers)
		}
	})
}

// The peers of another partition are others.
func TestRebuildInAnotherPartitionForgetsPeers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.rebuild(func(c *config.Interface) { c.PKey = pkeyOther })
		if s := a.iface.Status(); len(s.Peers) != 0 {
			t.Errorf("peers %+v", s.Peers)
		}
		a.startInterface()
		a.waitUp()
		b.rebuild(func(c *config.Interface) { c.PKey = pkeyOther })
		b.startInterface()
		b.waitUp()
		a.resolve(b.ip)
		synctest.Wait()
		reach(t, a, b)
	})
}
