package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
)

// Two hosts exchange traffic, a third joins later, and one restarts with
// another QPN.
func TestThreeHosts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, c := hosts[0], hosts[1], hosts[2]

	a.join()
	b.join()
	pingAll(a, b)

	c.join()
	pingAll(a, b, c)

	old := c.qp()
	c.daemon.kill()
	c.start()
	c.waitCarrier()
	for _, h := range []*host{a, b} {
		t.Logf("host %d reaches the restarted one %v after its carrier", h.number, h.waitReaches(c))
	}
	if now := c.qp(); now.QPN == old.QPN {
		t.Fatalf("the restarted host has the same QPN %#x, so the test proves nothing", now.QPN)
	}
	pingAll(a, b, c)
	requireNoStale(t, hosts)
}

// requireNoStale checks that the peers of each host are exactly the other
// hosts, each once and with its current address.
func requireNoStale(t *testing.T, hosts []*host) {
	t.Helper()
	requirePeers(t, hosts, everyPeer)
}

// requirePeers is requireNoStale for the peers that count. It retries, because the status shows peers a little later.
func requirePeers(t *testing.T, hosts []*host, counts func(peer) bool) {
	t.Helper()
	wrong := wrongPeers(hosts, counts)
	for end := time.Now().Add(countLimit); len(wrong) > 0 && time.Now().Before(end); wrong = wrongPeers(hosts, counts) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, text := range wrong {
		t.Error(text)
	}
}

// Filters of peers.
func everyPeer(peer) bool       { return true }
func addressedPeer(p peer) bool { return len(p.IPs) > 0 }

// wrongPeers returns the peers, among those that count, that are not one of the
// other hosts with its current address.
func wrongPeers(hosts []*host, counts func(peer) bool) (wrong []string) {
	for _, h := range hosts {
		want := make(map[string]hca.QPN) // GID -> QPN
		for _, other := range hosts {
			if other != h {
				want[other.qp().GID] = other.qp().QPN
			}
		}
		peers := slices.DeleteFunc(h.iface().Peers, func(p peer) bool { return !counts(p) })
		for _, p := range peers {
			if qpn, ok := want[p.GID]; !ok || qpn != p.QPN {
				wrong = append(wrong, fmt.Sprintf("host %d has a stale peer: %+v", h.number, p))
			}
			delete(want, p.GID)
		}
		if len(want) > 0 || len(peers) != len(hosts)-1 {
			wrong = append(wrong, fmt.Sprintf("host %d has peers %+v, lacks %v", h.number, peers, want))
		}
	}
	return wrong
}

// A daemon that is killed leaves ib0 with its addresses and without carrier,
// and the next one adopts it.
func TestAdopt(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	mac, addrs := a.iface().MAC, a.addrs()

	for _, end := range []struct {
		name string
		of   func(*daemon)
	}{{"SIGKILL", (*daemon).kill}, {"SIGTERM", (*daemon).stop}} {
		end.of(a.daemon)
		eventually(t, carrierLimit, "carrier off after "+end.name, func() bool { return !a.carrier() })
		if got := a.addrs(); !slices.Equal(got, addrs) {
			t.Errorf("addresses after %s: %q, were %q", end.name, got, addrs)
		}
		a.start()
		a.waitCarrier()
		if got := a.iface(); !got.Adopted || got.MAC != mac {
			t.Errorf("after %s: adopted %v, MAC %s, want it adopted with %s", end.name, got.Adopted, got.MAC, mac)
		}
		b.waitReaches(a)
		pingAll(a, b)
	}
}

// With --remove the daemon deletes ib0; so does ipoibd delete.
func TestRemove(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.join("--remove")
	h.daemon.stop()
	if h.exists() {
		t.Errorf("%s still exists after a stop with --remove", ifName)
	}
	h.join()
	h.daemon.stop()
	if !h.exists() {
		t.Fatalf("%s was deleted when the daemon stopped", ifName)
	}
	if out, err := h.ipoibd("delete", ifName).CombinedOutput(); err != nil {
		t.Errorf("ipoibd delete: %v\n%s", err, out)
	}
	if h.exists() {
		t.Errorf("%s still exists after ipoibd delete", ifName)
	}
}

// Without multicast on the underlay, the daemon replicates group messages to the
// configured peers; with --known-peers-only it ignores all other senders.
func TestPeers(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 3)
	a, b, stranger := hosts[0], hosts[1], hosts[2]
	capture := a.capture()
	a.join("--peer", nstest.IPv4(1), "--known-peers-only", slowPath)
	b.join("--peer", nstest.IPv4(0), "--known-peers-only", slowPath)
	stranger.join("--peer", nstest.IPv4(0))
	pingAll(a, b)
	if stranger.reaches(a) {
		t.Error("a host that is not a configured peer got an answer")
	}
	requireNoStale(t, []*host{a, b})
	if n := a.daemon.status().Devices[0].Counters["rx_drop_unknown_peer"]; n == 0 {
		t.Error("rx_drop_unknown_peer has not counted")
	}
	capture.Stop()
	if seen := capture.datagrams(t); len(seen) != 3 {
		t.Errorf("datagrams from %v, want all three hosts", seen)
	}
	if got := lines(t, tshark, "-n", "-r", capture.Path, "-Y", "eth.dst.ig == 1"); got[0] != "" {
		t.Errorf("multicast on the underlay:\n%s", strings.Join(got, "\n"))
	}
}
