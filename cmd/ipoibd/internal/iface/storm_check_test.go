package iface

import (
	"errors"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock/resetlocktest"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// tally counts how often what must be rehearsed has happened.
type tally struct {
	mu    sync.Mutex
	times map[string]int
}

func (n *tally) count(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.times == nil {
		n.times = map[string]int{}
	}
	n.times[what]++
}

// check fails unless every rung was entered, and every end of a reset that others share came.
func (n *tally) check(t *testing.T) {
	t.Helper()
	want := slices.Clone(resetlocktest.Happenings)
	for r := qprecovery.RungResumeQP; r < qprecovery.NumRung; r++ {
		want = append(want, r.String())
	}
	for _, what := range want {
		t.Logf("%s: %d times", what, n.times[what])
		if n.times[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
}

// follow reads the entries of the journal since the last call, and counts the rungs that were
// entered.
func (s *storm) follow() {
	for _, e := range s.journal.Since(s.last) {
		s.last, s.told = e.Seq, append(s.told, e)
		for r := range qprecovery.NumRung {
			if e.Kind == journal.KindRung && e.Rung == r.String() {
				s.seen.count(r.String())
			}
		}
	}
}

// stormLabel is the label of a storm's goroutines, which those that they start inherit.
const stormLabel = "storm"

var labelled = regexp.MustCompile(`(?m)^(\d+) @ .*\n# labels: \{"` + stormLabel + `":"(.*)"\}`)

// goroutines counts the goroutines of the storm: others may run at the same time.
func (s *storm) goroutines() (n int) {
	var text strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		s.Fatal(err)
	}
	for _, m := range labelled.FindAllStringSubmatch(text.String(), -1) {
		if m[2] == s.Name() {
			count, _ := strconv.Atoi(m[1])
			n += count
		}
	}
	if n == 0 {
		s.Fatalf("no goroutine has the label %q:\n%s", s.Name(), text.String())
	}
	return n
}

// checkEnd checks two hosts that are healthy again.
func (s *storm) checkEnd(goroutines int) {
	// A storm that leaks would leave tens, and would also end the bubble with a panic.
	const slack = 2
	if now := s.goroutines(); now > goroutines+slack {
		s.Errorf("%d goroutines, were %d", now, goroutines)
	}
	for i, h := range s.hosts {
		s.checkPeers(h, s.hosts[1-i])
		s.checkInstances(h)
		checkAccounts(s.T, h.status())
		s.checkFrames(i)
		h.onRun(func(*Iface) { h.ladder.replay(s.T) })
	}
	s.fabric.Capture(nil)
	reach(s.T, s.hosts[0].testHost, s.hosts[1].testHost)
}

// checkPeers fails unless a host knows the current address of the other one, and no other peer.
func (s *storm) checkPeers(h, other *stormHost) {
	h.resolve(other.ip)
	qp := other.status().QP
	if peers := h.status().Peers; len(peers) != 1 || peers[0].QPN != qp.QPN || peers[0].GID != qp.GID || peers[0].Handle != "ready" {
		s.Errorf("%s knows %+v, want only %s", h.name, peers, qp.Address)
	}
}

// checkInstances fails unless all instances except the current one are closed.
func (s *storm) checkInstances(h *stormHost) {
	all := h.hca.Instances()
	for n, i := range all[:len(all)-1] {
		if _, err := i.QueryPort(1); !errors.Is(err, hca.ErrClosed) {
			s.Errorf("%s: instance %d of %d is not closed: %v", h.name, n, len(all), err)
		}
	}
	s.Logf("%s: %d instances", h.name, len(all))
}

// counters adds up the counters of all instances of a host's device.
func (h *stormHost) counters() (s report.Interface) {
	s.Counters = report.Counters{}
	for _, i := range h.hca.Instances() {
		s.Counters.Add("", i.Counters())
	}
	return s
}

// rxDrops are the reasons for which the device drops received datagrams.
var rxDrops = []string{
	"rx_drop_short", "rx_drop_version", "rx_drop_opcode", "rx_drop_immediate", "rx_drop_pad", "rx_drop_too_long", "rx_drop_icrc", "rx_drop_unknown_peer", "rx_drop_no_qp", "rx_drop_gsi", "rx_drop_not_attached", "rx_drop_group_qpn", "rx_other_pkey",
	"rx_drop_qp_state", "rx_drop_pkey", "rx_drop_qkey", "rx_drop_no_recv", "rx_drop_recv_length", "rx_drop_recv_access",
}

// named adds up the counters with these names.
func named(s report.Interface, names []string) (n uint64) {
	for _, name := range names {
		n += s.Counters[name].Value
	}
	return n
}

// checkFrames follows the frames of a host to the other one, from link to link. Where both
// ends are counted, they are equal. Requests that are lost with a broken device are counted only
// at the sender: as failed, or as taken back.
func (s *storm) checkFrames(from int) {
	a, b := s.hosts[from], s.hosts[1-from]
	ia, ib, da, db, l := a.status(), b.status(), a.counters(), b.counters(), &s.ledger
	rx := count(db, "rx_packets")
	for _, e := range []struct {
		what    string
		in, out uint64
	}{
		{"host to daemon", a.taken(), count(ia, "tx_read")},
		{"daemon to slow path", count(ia, "tx_slow_path"), count(ia, "neigh_from_host")},
		{"slow path to daemon", count(ia, "neigh_to_fabric", "neigh_kept_sent", "neigh_requests", "neigh_announcements", "freeze_probes"), count(ia, "tx_injected")},
		{"device to fabric", count(da, "tx_packets"), l.left[a.name]},
		{"fabric to device", l.queued[b.name] - l.purged[b.name], rx},
		{"device to queue pair", rx + count(db, "tx_looped"), count(db, "rx_delivered", "tx_loop_blocked") + named(db, rxDrops)},
		{"daemon to slow path", count(ib, "rx_slow_path"), count(ib, "neigh_from_fabric")},
		{"slow path", count(ib, "neigh_from_"), count(ib, "neigh_to_", "neigh_kept", "neigh_own_", "neigh_drop_")},
	} {
		if e.in != e.out {
			s.Errorf("%s, %s: %d in, %d out", a.name, e.what, e.in, e.out)
		}
	}
	s.checkLost(l.total(s.T, from), ia, ib, da, db)
}

// successes are the reasons for which a device drops messages whose sends complete with success.
var successes = []string{"tx_drop_no_room", "tx_drop_port_down", "tx_drop_no_source"}

// checkLost fails if more frames are missing than were counted as lost.
func (s *storm) checkLost(sum sums, tx, rx, from, to report.Interface) {
	s.Logf("%+v", sum)
	if lost, counted := sum.given-sum.left, count(tx, "tx_drop_", "tx_wc_", "neigh_drop_")+named(from, successes); lost > counted {
		s.Errorf("%d frames did not leave, %d are counted", lost, counted)
	}
	received, taken := count(rx, "rx_received"), count(rx, "rx_wc_", "rx_taken_back")
	if given := count(to, "rx_delivered"); given < received || given > received+taken {
		s.Errorf("device delivered %d, daemon received %d and lost %d", given, received, taken)
	}
}
