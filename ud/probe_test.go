package ud

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

func TestR08ProbeIsOurOwnAlone(t *testing.T) {
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
		{"our own data come back", gidA, group, qpnA, msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.1", 60)), OwnMulticast},
	} {
		buf, wc := received(c.sgid, c.dgid, c.msg)
		wc.SrcQPN = c.qpn
		rules := rxRules{testMTU, newPeers(1)}
		if _, reason := rules.inspect(buf, &wc); reason != c.want {
			t.Errorf("%s: %v, want %v", c.name, reason, c.want)
		}
	}
}

func TestR08ProbeIsToldAndCounted(t *testing.T) {
	b := newRxBench(t, 64)
	if n := b.Probed(); n != 0 {
		t.Fatalf("probe %d before the first", n)
	}
	for _, n := range []uint64{1, 1 << 63} {
		buf := b.qp.mr.at(b.qp.recvs[0].sge)
		b.qp.receiveWC(ProbeMessage(n), gidA, hca.WC{SrcQPN: qpnA, Flags: hca.WCFlagGRH, ByteLen: hca.GRHLen + probeLen})
		putGRH(buf, gidA, gidA)
		b.pump(t)
		if got := b.Probed(); got != n {
			t.Errorf("probe %d came back as %d", n, got)
		}
	}
	if c := counts(b.Counters()); c["rx_probe"] != 2 || c["rx_received"] != 2 || len(b.sink.frames) != 0 {
		t.Errorf("%v, %d frames for the host", c, len(b.sink.frames))
	}
	checkAccounts(t, b.Counters())
	if p := b.Progress(); p.Completed != 2 || p.Posted-p.Completed-p.TakenBack != uint64(b.Outstanding()) {
		t.Errorf("progress %+v, %d outstanding", p, b.Outstanding())
	}
}
