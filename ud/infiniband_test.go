package ud

import (
	"sync/atomic"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Test addresses on InfiniBand: ports with two path bits.
const (
	testLMC = 2
	lidA    = hca.LID(0x40)
	lidB    = hca.LID(0x44)
)

// lidPeers is a snapshot of a subnet, where A and B are known by LID.
type lidPeers struct {
	*fakePeers
	from hca.UDSource // of the last look-up of a MAC
}

func newLIDPeers() *lidPeers { return &lidPeers{fakePeers: newPeers(1)} }

func (p *lidPeers) PeerMAC(from hca.UDSource) (mac ipoib.MAC, bytes *atomic.Uint64) {
	p.from = from
	return macB, &p.heard
}

func (p *lidPeers) Self(from hca.UDSource) bool {
	return from.Key() == hca.UDSource{LID: lidA, QPN: qpnA}
}

// withoutGRH returns a slot with a message of B without a GRH, and its completion. What the device
// leaves in the GRH area is unspecified.
func withoutGRH(m []byte) ([]byte, hca.WC) {
	buf, wc := received(gidB, gidA, m)
	for i := range buf[:hca.GRHLen] {
		buf[i] = 0xa5
	}
	wc.Flags, wc.SLID = 0, uint16(lidB)
	return buf, wc
}

func TestInspectWithoutGRH(t *testing.T) {
	v4, v6, arp := ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6, ipoib.EtherTypeARP
	byB := hca.UDSource{LID: lidB, QPN: qpnB}
	for _, c := range []struct {
		name   string
		msg    []byte
		change func(buf []byte, wc *hca.WC)
		want   Reason
		from   hca.UDSource
	}{
		{"IPv4", fromB(60), nil, Delivered, byB},
		{"IPv6", msg(v6, udp6("fe80::1")), nil, Delivered, byB},
		{"first path bit", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID++ }, Delivered, byB},
		{"all path bits", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID += 3 }, Delivered, byB},
		{"the next port", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID += 4 }, Delivered, hca.UDSource{LID: lidB + 4, QPN: qpnB}},
		{"ARP", msg(arp, make([]byte, 56)), nil, SlowPathed, byB},
		{"ND", msg(v6, ns6("ff02::1:ff00:1")), nil, SlowPathed, byB},
		{"with a GRH", fromB(60), grhFrom(gidB, gidA), Delivered, hca.UDSource{GID: gidB, LID: lidB, QPN: qpnB}},
		{"GRH that looks like IPv4", fromB(60), func(buf []byte, wc *hca.WC) {
			grhFrom(gidB, gidA)(buf, wc)
			copy(buf[20:], "\x45\x00\x00\x00\x00\x00\x00\x00\x40\x11\x00\x00\xc0\x00\x02\x01\xc0\x00\x02\x02")
			wc.Network = hca.NetworkIPv4
		}, Delivered, hca.UDSource{LID: lidB, QPN: qpnB}},

		{"no LID", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = 0 }, BadLID, hca.UDSource{}},
		{"only path bits", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = 3 }, BadLID, hca.UDSource{}},
		{"the last LID of a port", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = 0xbfff }, Delivered, hca.UDSource{LID: 0xbffc, QPN: qpnB}},
		{"a group's LID", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = 0xc000 }, BadLID, hca.UDSource{}},
		{"the permissive LID", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = 0xffff }, BadLID, hca.UDSource{}},
		{"bad GRH", fromB(60), func(_ []byte, wc *hca.WC) { wc.Flags = hca.WCFlagGRH }, BadGRH, hca.UDSource{}},
		{"nothing", fromB(60), func(_ []byte, wc *hca.WC) { wc.ByteLen = 0 }, Runt, hca.UDSource{}},
		{"own", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID, wc.SrcQPN = uint16(lidA), qpnA }, OwnMulticast, hca.UDSource{}},
		{"own, another path", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID, wc.SrcQPN = uint16(lidA)+1, qpnA }, OwnMulticast, hca.UDSource{}},
		{"own LID, another QPN", fromB(60), func(_ []byte, wc *hca.WC) { wc.SLID = uint16(lidA) }, Delivered, hca.UDSource{LID: lidA, QPN: qpnB}},
		{"own GID in a GRH of another port", fromB(60), func(buf []byte, wc *hca.WC) {
			grhFrom(gidA, gidA)(buf, wc)
			wc.SrcQPN = qpnA
		}, Delivered, hca.UDSource{GID: gidA, LID: lidB, QPN: qpnA}},
		{"no IP header", msg(v4, nil), nil, Malformed, hca.UDSource{}},
	} {
		buf, wc := withoutGRH(c.msg)
		if c.change != nil {
			c.change(buf, &wc)
		}
		peers := newLIDPeers()
		rules := rxRules{testMTU, portLID{true, testLMC}, peers}
		m, got := rules.inspect(buf, &wc)
		if got != c.want || got == Delivered && (peers.from.Key() != c.from.Key() || m.src != macB) {
			t.Errorf("%s: %v from %+v, want %v from %+v", c.name, got, peers.from, c.want, c.from)
		}
		if got == SlowPathed && (m.from.UDSource != c.from || m.from.Multicast) {
			t.Errorf("%s: from %+v, want %+v", c.name, m.from, c.from)
		}
	}
}

// grhFrom adds a GRH.
func grhFrom(sgid, dgid hca.GID) func(buf []byte, wc *hca.WC) {
	return func(buf []byte, wc *hca.WC) {
		putGRH(buf, sgid, dgid)
		wc.Flags = hca.WCFlagGRH
	}
}

// A message to a group has a GRH, which says so. Its sender is known by LID all the same.
func TestInspectGroupOfASubnet(t *testing.T) {
	group := ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, testPKey)
	for _, c := range []struct {
		name string
		msg  []byte
		want Reason
		dst  string
	}{
		{"subnet broadcast", msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.255", 60)), Delivered, "ff:ff:ff:ff:ff:ff"},
		{"IPv6 group", msg(ipoib.EtherTypeIPv6, udp6("ff02::1:3")), Delivered, "33:33:00:01:00:03"},
		{"ARP", msg(ipoib.EtherTypeARP, make([]byte, 56)), SlowPathed, "00:00:00:00:00:00"},
	} {
		buf, wc := withoutGRH(c.msg)
		grhFrom(gidB, group)(buf, &wc)
		rules := rxRules{testMTU, portLID{true, testLMC}, newLIDPeers()}
		m, got := rules.inspect(buf, &wc)
		if want := (Sender{hca.UDSource{GID: gidB, LID: lidB, QPN: qpnB}, true}); got != c.want || m.from != want || m.dst.String() != c.dst {
			t.Errorf("%s: %v to %v from %+v, want %v to %s from %+v", c.name, got, m.dst, m.from, c.want, c.dst, want)
		}
	}
}

// The queue pair's own probe returns without a GRH.
func TestR08ProbeWithoutGRH(t *testing.T) {
	buf, wc := withoutGRH(ProbeMessage(7))
	wc.SLID, wc.SrcQPN = uint16(lidA), qpnA
	rules := rxRules{testMTU, portLID{true, testLMC}, newLIDPeers()}
	if _, got := rules.inspect(buf, &wc); got != Probed {
		t.Errorf("%v, want %v", got, Probed)
	}
}

// Rx drops messages without a GRH until UseLIDs, and again after UseGIDs.
func TestRxUsesLIDs(t *testing.T) {
	b := newRxBench(t, 64)
	b.snap.Publish(newLIDPeers())
	send := func(lid hca.LID) {
		t.Helper()
		m := fromB(60)
		b.qp.receiveWC(m, gidA, hca.WC{SrcQPN: qpnB, SLID: uint16(lid), ByteLen: uint32(hca.GRHLen + len(m))})
		b.pump(t)
	}
	send(lidB)
	b.UseLIDs(testLMC)
	send(lidB + 1)
	send(0)
	b.UseGIDs()
	send(lidB)
	if c := counts(b.Counters()); c["rx_drop_no_grh"] != 2 || c["rx_delivered"] != 1 || c["rx_drop_bad_lid"] != 1 {
		t.Errorf("%v", c)
	}
	checkAccounts(t, b.Counters())
}

// Segments of one flow are joined, whether they have a GRH or not, and whichever path they took. Those of another
// port are not.
func TestRxJoinsByLID(t *testing.T) {
	b := newRxBench(t, 64)
	b.snap.Publish(newLIDPeers())
	b.UseLIDs(testLMC)
	for i, from := range []hca.LID{lidB, lidB + 2, lidB + 4} {
		m := fittingTCP(i)
		wc := hca.WC{SrcQPN: qpnB, SLID: uint16(from), ByteLen: uint32(hca.GRHLen + len(m))}
		if i == 0 {
			wc.Flags |= hca.WCFlagGRH
		}
		b.qp.receiveWC(m, gidA, wc)
	}
	b.pump(t)
	if c := counts(b.Counters()); c["rx_delivered"] != 3 || c["rx_merged"] != 1 || len(b.sink.frames) != 2 {
		t.Errorf("%v, %d frames", c, len(b.sink.frames))
	}
}

func TestRxByLIDAllocatesNothing(t *testing.T) {
	for name, m := range map[string][]byte{"unicast": fromB(1400), "slow path": msg(ipoib.EtherTypeARP, make([]byte, 56))} {
		b, round := newRxLoopOf(t, m, hca.Batch, hca.WC{SrcQPN: qpnB, SLID: uint16(lidB)})
		b.UseLIDs(testLMC)
		round() // the fake's own slices grow once
		if got := testing.AllocsPerRun(100, round); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
		if c := counts(b.Counters()); c["rx_delivered"]+c["rx_slow_path"] != c["rx_received"] {
			t.Errorf("%s: %v", name, c)
		}
	}
}
