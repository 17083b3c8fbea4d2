package ud

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/segment"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// largeMsg returns the message of a large receive: n bytes of TCP payload.
func largeMsg(n int) []byte {
	p := ipv4("10.0.0.1", 40+n)
	p[9], p[20+12], p[20+13] = 6, 5<<4, 0x10
	return msg(ipoib.EtherTypeIPv4, p)
}

// receiveLarge completes the oldest receive with a large one.
func (q *fakeQP) receiveLarge(m []byte, segments, mss int) {
	q.receiveWC(m, gidA, hca.WC{
		Flags: hca.WCFlagGRH | hca.WCFlagIPCsumOK, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(m)),
		LRO: hca.LRO{Segments: segments, MSS: mss},
	})
}

// A large receive becomes one frame for the host, whose virtio header requests the segments
// that were joined. Each of them is counted.
func TestRxDeliversALargeReceive(t *testing.T) {
	b := newRxBench(t, rxSlots)
	m := largeMsg(3500)
	b.qp.receiveLarge(m, 4, 1000)
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	want := make([]byte, vnet.HeaderLen)
	vnet.Header{Flags: vnet.NeedsCsum, GSOType: vnet.GSOTCPv4, HdrLen: 54, GSOSize: 1000, CsumStart: 34, CsumOffset: 16}.Put(want)
	if f := b.sink.frames[0]; !bytes.Equal(f[:vnet.HeaderLen], want) || !bytes.Equal(f[vnet.HeaderLen+14:], m[ipoib.HeaderLen:]) {
		t.Errorf("frame %x, want virtio header %x and the packet", f, want)
	}
	checkCounts(t, b.Counters(), idle(2, map[string]uint64{"rx_received": 5, "rx_delivered": 5, "rx_merged": 3}))
	b.checkRing(t)
}

// fittingTCP returns the i-th of several messages that carry consecutive segments of a TCP flow.
func fittingTCP(i int) []byte {
	const size = 100
	p := ipv4("10.0.0.1", 40+size)
	clear(p[20:40])
	p[9], p[20+12], p[20+13], p[5] = 6, 5<<4, 0x10, byte(i)
	binary.BigEndian.PutUint32(p[20+4:], uint32(i*size))
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], ^checksum.Sum(p[:20], 0))
	binary.BigEndian.PutUint16(p[20+16:], ^checksum.Sum(p[20:], checksum.Pseudo(p[12:20], 6, 20+size)))
	return msg(ipoib.EtherTypeIPv4, p)
}

// A segment of another sender is not joined to a flow that it fits into: neither one of another
// GID, nor one of another queue pair of the same GID, which the host may see under the same MAC.
func TestRxJoinsOnlyMessagesOfOneSender(t *testing.T) {
	for name, c := range map[string]struct {
		gid    hca.GID
		qpn    hca.QPN
		frames int
	}{
		"same sender":        {gidB, qpnB, 1},
		"another GID":        {hca.GIDFromAddr(netip.MustParseAddr("192.0.2.3")), qpnB, 3},
		"another queue pair": {gidB, qpnB + 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRxBench(t, rxSlots)
			for i, from := range []struct {
				gid hca.GID
				qpn hca.QPN
			}{{gidB, qpnB}, {c.gid, c.qpn}, {gidB, qpnB}} {
				m, area := fittingTCP(i), b.qp.mr.at(b.qp.recvs[0].sge)
				b.qp.receiveWC(m, gidA, hca.WC{Flags: hca.WCFlagGRH, SrcQPN: from.qpn, ByteLen: uint32(hca.GRHLen + len(m))})
				putGRH(area, from.gid, gidA)
			}
			b.pump(t)
			if len(b.sink.frames) != c.frames {
				t.Errorf("%d frames, want %d", len(b.sink.frames), c.frames)
			}
		})
	}
}

// The slots follow the queue pair: they have room for 64 KB only if it joins messages. A queue
// pair of an earlier generation may have had others.
func TestRxSlotsFollowTheQueuePair(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for gen, lro := range []bool{true, false, true} {
		b.Detach()
		b.qp.recvs = nil
		b.qp.lro = lro
		size := rxSlots * RxStride(b.cfg.PortMTU, lro)
		b.qp.mr = &fakeMR{make([]byte, size-1)}
		if err := b.Attach(b.qp, b.qp.recvCQ, b.qp.mr, uint32(10+gen)); !errors.Is(err, hca.ErrInvalid) {
			t.Fatalf("memory is a byte too short: %v, want ErrInvalid", err)
		}
		b.qp.mr = &fakeMR{make([]byte, size)}
		b.attach(t, uint32(10+gen))
		if n := int(b.qp.recvs[0].sge.Length); n != RxStride(b.cfg.PortMTU, lro) || lro != (n >= rxPayload+65535) {
			t.Fatalf("large receives %v: a slot has %d bytes", lro, n)
		}
		if !lro {
			continue
		}
		m := largeMsg(65535 - 40)
		b.qp.receiveLarge(m, 66, 1000)
		b.pump(t)
		if f := b.sink.frames[len(b.sink.frames)-1]; !bytes.Equal(f[vnet.HeaderLen+14:], m[ipoib.HeaderLen:]) {
			t.Error("the longest packet has changed")
		}
	}
}

// However a large receive ends, each of its messages is counted once.
func TestRxCountsTheMessagesOfLargeReceives(t *testing.T) {
	for name, c := range map[string]struct {
		m        []byte
		segments int
		mss      int
		change   func(*rxBench)
		want     map[string]uint64
	}{
		"refused by the host": {largeMsg(2500), 3, 1000, func(b *rxBench) { b.sink.accept = 0 }, map[string]uint64{"rx_drop_sink_refused": 3, "rx_merged": 2}},
		"above the MTU":       {largeMsg(4000), 2, testMTU - 39, nil, map[string]uint64{"rx_drop_too_long": 1, "rx_delivered": 1}},
		"all above the MTU":   {largeMsg(2 * (testMTU - 39)), 2, testMTU - 39, nil, map[string]uint64{"rx_drop_too_long": 2}},
		"of the MTU":          {largeMsg(4000), 2, testMTU - 40, nil, map[string]uint64{"rx_delivered": 2, "rx_merged": 1}},
		"no TCP or UDP":       {msg(ipoib.EtherTypeIPv4, make([]byte, 3000)), 3, 1000, nil, map[string]uint64{"rx_drop_malformed": 3}},
		"ARP":                 {msg(ipoib.EtherTypeARP, make([]byte, 56)), 2, 20, nil, map[string]uint64{"rx_drop_malformed": 2}},
		"our own":             {largeMsg(2500), 3, 1000, func(b *rxBench) { putGRH(b.qp.mr.mem, gidA, gidA); b.qp.recvCQ.wcs[0].SrcQPN = qpnA }, map[string]uint64{"rx_own_multicast": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRxBench(t, rxSlots)
			b.qp.receiveLarge(c.m, c.segments, c.mss)
			if c.change != nil {
				c.change(b)
			}
			if err := b.Pump(time.Time{}); err != nil {
				t.Fatal(err)
			}
			c.want["rx_received"] = uint64(c.segments)
			checkCounts(t, b.Counters(), idle(1, c.want))
			b.checkRing(t)
		})
	}
}

// Large receives pass through package coalesce unchanged, in order with other frames of their
// flow.
func TestRxKeepsTheOrderAroundLargeReceives(t *testing.T) {
	b := newRxBench(t, rxSlots)
	var want [][]byte
	for i, n := range []int{100, 2500, 100, 100, 2000} {
		m := largeMsg(n)
		binary.BigEndian.PutUint32(m[ipoib.HeaderLen+20+4:], uint32(i))
		if n > 1000 {
			b.qp.receiveLarge(m, (n-1)/1000+1, 1000)
		} else {
			b.qp.receive(m, gidA)
		}
		want = append(want, m[ipoib.HeaderLen:])
	}
	b.pump(t)
	for i, f := range b.sink.frames {
		if !bytes.Equal(f[vnet.HeaderLen+14:], want[i]) {
			t.Errorf("frame %d is %x, want %x", i, f[vnet.HeaderLen+14:], want[i])
		}
	}
	checkCounts(t, b.Counters(), idle(5, map[string]uint64{"rx_received": 8, "rx_delivered": 8, "rx_merged": 3}))
}

// Datagrams of one flow become one frame if the queue pair permits that, whatever the one before
// it permitted.
func TestRxJoinsUDPIfTheQueuePairPermits(t *testing.T) {
	b := newRxBench(t, rxSlots)
	for gen, udp := range []bool{false, true, false} {
		b.Detach()
		b.qp.recvs, b.qp.lroUDP, b.sink.frames = nil, udp, nil
		b.attach(t, uint32(10+gen))
		for range 3 {
			p := ipv4("10.0.0.1", 128)
			binary.BigEndian.PutUint16(p[6:], 0x4000) // DF, so that the identifications may be equal
			binary.BigEndian.PutUint16(p[20+4:], 108)
			m := msg(ipoib.EtherTypeIPv4, p)
			b.qp.receiveWC(m, gidA, hca.WC{
				Flags: hca.WCFlagGRH | hca.WCFlagIPCsumOK, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(m)),
			})
		}
		b.pump(t)
		want := 3
		if udp {
			want = 1
		}
		if len(b.sink.frames) != want {
			t.Errorf("3 datagrams with UDP permitted %v: %d frames, want %d", udp, len(b.sink.frames), want)
		}
	}
	checkAccounts(t, b.Counters())
	if got := counts(b.Counters()); got["rx_delivered"] != 9 || got["rx_merged"] != 2 {
		t.Errorf("counters %v, want 9 delivered and 2 merged", got)
	}
}

// If the segments of a large receive are above the MTU, but not the last one, which is shorter,
// the host gets that one as it was sent.
func TestRxDeliversTheLastSegmentIfOnlyTheOthersAreTooLong(t *testing.T) {
	const mss, last = testMTU, 100
	b := newRxBench(t, rxSlots)
	m := largeMsg(mss + last)
	at := ipoib.HeaderLen + 20
	m[at+13] |= 8 // PSH
	var plan segment.Plan
	if err := plan.Cut(m[:at+20], ipoib.HeaderLen, len(m)-at-20, mss); err != nil {
		t.Fatal(err)
	}
	off, n := plan.Payload(1)
	data := m[at+20+off:][:n]
	var sum segment.Sum
	sum.Add(data)
	want := append(make([]byte, at+20), data...)
	plan.Put(want, 1, sum)
	b.qp.receiveLarge(m, 2, mss)
	b.pump(t)
	checkCounts(t, b.Counters(), idle(1, map[string]uint64{"rx_received": 2, "rx_delivered": 1, "rx_drop_too_long": 1}))
	if len(b.sink.frames) != 1 || n != last {
		t.Fatalf("%d frames, the last segment has %d bytes", len(b.sink.frames), n)
	}
	f := b.sink.frames[0]
	if !bytes.Equal(f[vnet.HeaderLen+14:], want[ipoib.HeaderLen:]) {
		t.Errorf("frame\n%x, want\n%x", f[vnet.HeaderLen+14:], want[ipoib.HeaderLen:])
	}
	if vnet.Flags(f[0]) != vnet.DataValid || vnet.GSOType(f[1]) != vnet.GSONone {
		t.Errorf("virtio header %x, want only DataValid", f[:vnet.HeaderLen])
	}
	b.checkRing(t)
}

// The slow path takes the last segment of a large receive for an unknown address.
func TestRxAsksForTheStationOfALargeReceive(t *testing.T) {
	b := newRxBench(t, rxSlots)
	m := largeMsg(2 * 1000)
	copy(m[ipoib.HeaderLen+16:], unknownIP.AsSlice())
	b.qp.receiveLarge(m, 2, 1000)
	b.pump(t)
	checkCounts(t, b.Counters(), idle(1, map[string]uint64{"rx_received": 2, "rx_slow_path": 1, "rx_drop_unknown_station": 1}))
	if len(b.slow.msgs) != 1 || len(b.slow.msgs[0]) != ipoib.HeaderLen+40+1000 {
		t.Errorf("%d messages for the slow path: %x", len(b.slow.msgs), b.slow.msgs)
	}
	b.checkRing(t)
}
