package ud

import (
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

func TestR08OnlyOurOwnMessageIsAProbe(t *testing.T) {
	probe, group := ProbeMessage(7), hca.GID{0xff, 0x12}
	for _, c := range []struct {
		name       string
		sgid, dgid hca.GID
		qpn        hca.QPN
		msg        []byte
		want       Reason
	}{
		{"our own", gidA, gidA, qpnA, probe, Probed},
		{"of a peer", gidB, gidA, qpnB, probe, EtherType},
		{"of another QP of our GID", gidA, gidA, qpnB, probe, EtherType},
		{"to a group", gidA, group, qpnA, probe, EtherType},
		{"too short", gidA, gidA, qpnA, probe[:len(probe)-1], EtherType},
		{"too long", gidA, gidA, qpnA, append(ProbeMessage(7), 0), EtherType},
		{"our own data looped back", gidA, group, qpnA, msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.1", 60)), OwnMulticast},
	} {
		buf, wc := received(c.sgid, c.dgid, c.msg)
		wc.SrcQPN = c.qpn
		rules := rxRules{testMTU, portLID{}, newPeers(1)}
		if _, reason := rules.inspect(buf, &wc); reason != c.want {
			t.Errorf("%s: %v, want %v", c.name, reason, c.want)
		}
	}
}

func TestR08ReturnedProbeIsCounted(t *testing.T) {
	b := newRxBench(t, 64)
	for _, n := range []uint64{1, 1 << 63} {
		buf := b.qp.mr.at(b.qp.recvs[0].sge)
		b.qp.receiveWC(ProbeMessage(n), gidA, hca.WC{SrcQPN: qpnA, Flags: hca.WCFlagGRH, ByteLen: hca.GRHLen + probeLen})
		putGRH(buf, gidA, gidA)
		b.pump(t)
	}
	if c := counts(b.Counters()); c["rx_probe"] != 2 || c["rx_received"] != 2 || len(b.sink.frames) != 0 {
		t.Errorf("%v, %d frames for the host", c, len(b.sink.frames))
	}
	checkAccounts(t, b.Counters())
	if n := b.Completed(); n != 2 {
		t.Errorf("%d completed, want 2", n)
	}
}

// Tx reports a probe once its send has completed, not when it is posted, refused or taken
// back, and not when another send completes.
func TestR08ProbeIsReportedOnceItsSendCompletes(t *testing.T) {
	b := newTxBench(t, 128)
	toSelf := hca.UDDest{AH: destB.AH, QPN: qpnA}
	want := func(what string, probed uint64) {
		t.Helper()
		if got := b.Progress().Probed; got != probed {
			t.Errorf("%s: probe %d, want %d", what, got, probed)
		}
	}
	b.src.add(toB(100))
	b.pump(t)
	b.Inject(toSelf, ProbeMessage(5))
	b.pump(t)
	want("posted", 0)
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	want("a send before it completed", 0)
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	want("completed", 5)
	b.qp.invalid = func(w *hca.SendWR) bool { return w.UD.QPN == qpnA }
	b.Inject(toSelf, ProbeMessage(6))
	b.pump(t)
	b.src.add(toB(100)) // in the slot of the probe
	b.pump(t)
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	want("refused", 5)
	b.qp.invalid = nil
	b.Inject(toSelf, ProbeMessage(7))
	b.pump(t)
	b.Detach()
	want("taken back", 5)
}

// The owner is called when the pumps have work, and then the progress already shows it: before a post,
// which may hang, and before the receives are posted again.
func TestR08OwnerSeesWorkBeforeThePost(t *testing.T) {
	tx := newTxBench(t, 128)
	var waiting []int
	tx.cfg.OnPost = func() {
		if len(tx.qp.sends) == len(waiting) { // not posted yet
			waiting = append(waiting, tx.Progress().Waiting)
		}
	}
	tx.src.add(toB(100))
	tx.pump(t)
	tx.Inject(hca.UDDest{AH: destB.AH, QPN: qpnA}, ProbeMessage(1))
	tx.pump(t)
	if !slices.Equal(waiting, []int{1, 2}) {
		t.Errorf("sends that wait before each post: %v, want 1, then 2", waiting)
	}
	rx := newRxBench(t, 128)
	calls := 0
	rx.cfg.OnReceive = func() {
		calls++
		if rx.Completed() != 1 || rx.Outstanding() != 127 {
			t.Errorf("%d receives completed and %d outstanding, want 1, and 127", rx.Completed(), rx.Outstanding())
		}
	}
	rx.pump(t)
	if calls != 0 {
		t.Errorf("called %d times without a receive", calls)
	}
	rx.qp.receive(fromB(100), gidA)
	rx.pump(t)
	if calls != 1 {
		t.Errorf("called %d times for a receive, want once", calls)
	}
}
