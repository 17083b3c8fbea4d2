package ud

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/join"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// largeTCP returns a frame to a MAC with n bytes of TCP payload, as a host hands it over to be
// cut into segments of mss bytes.
func largeTCP(to ipoib.MAC, n, mss int) []byte {
	p := ipv4("10.0.0.2", 40+n)
	p[9] = 6
	p[20+12] = 5 << 4
	f := frame(to, macA, ipoib.EtherTypeIPv4, p)
	vnet.Header{
		Flags: vnet.NeedsCsum, GSOType: vnet.GSOTCPv4, HdrLen: 54, GSOSize: uint16(mss),
		CsumStart: 34, CsumOffset: vnet.CsumOffsetTCP,
	}.Put(f)
	return f
}

// A large frame is one large send, whose header and payload lie in the frame's slot.
func TestTxPostsALargeFrame(t *testing.T) {
	b := newLargeTxBench(t)
	f := largeTCP(macB, 60000, 1000)
	b.src.add(f)
	b.pump(t)
	if len(b.qp.sends) != 1 {
		t.Fatalf("%d sends, want 1", len(b.qp.sends))
	}
	s := b.qp.sends[0]
	if want := append([]byte{0x08, 0x00, 0x00, 0x00}, f[txPayload:txPayload+40]...); s.lso.MSS != 1000 || !bytes.Equal(s.lso.Header, want) {
		t.Errorf("MSS %d, header\n%x, want 1000,\n%x", s.lso.MSS, s.lso.Header, want)
	}
	if got := b.qp.mr.at(s.sge); !bytes.Equal(got, f[txPayload+40:]) {
		t.Errorf("payload of %d bytes, want the last %d of the frame", len(got), 60000)
	}
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 1, "tx_posts": 1, "tx_completions": 1, "tx_sent": 1, "tx_large": 1, "tx_segments": 60})
	b.checkRing(t)
}

// A frame may have as many segments as a device takes, whatever the depth of the send queue.
func TestTxPostsTheMostSegments(t *testing.T) {
	b := newLargeTxBench(t)
	b.src.add(largeTCP(macB, hca.MaxLSOSegments*30, 30))
	b.pump(t)
	if len(b.qp.sends) != 1 || b.qp.sends[0].lso.MSS != 30 {
		t.Fatalf("%d sends, want a large one", len(b.qp.sends))
	}
	b.qp.completeSends(1, hca.WCSuccess)
	b.pump(t)
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 1, "tx_posts": 1, "tx_completions": 1, "tx_sent": 1, "tx_large": 1, "tx_segments": hca.MaxLSOSegments})
	b.checkRing(t)
}

// A frame with a partial checksum is completed before it is sent.
func TestTxCompletesAChecksum(t *testing.T) {
	b := newLargeTxBench(t)
	f := largeTCP(macB, 100, 0)
	vnet.Header{Flags: vnet.NeedsCsum, CsumStart: 34, CsumOffset: vnet.CsumOffsetTCP}.Put(f)
	b.src.add(f)
	b.pump(t)
	if len(b.qp.sends) != 1 || b.qp.sends[0].lso.MSS != 0 {
		t.Fatalf("%d sends, want one that is not large", len(b.qp.sends))
	}
	got := b.qp.mr.at(b.qp.sends[0].sge)[ipoib.HeaderLen:]
	want := ^checksum.Sum(f[txEther+34:], 0)
	if sum := binary.BigEndian.Uint16(got[20+vnet.CsumOffsetTCP:]); sum != want {
		t.Errorf("checksum %#x, want %#x", sum, want)
	}
}

// An inconsistent request, or one that was not offered, is dropped and counted by name.
func TestTxDropsLargeFrames(t *testing.T) {
	tooMany := largeTCP(macB, hca.MaxLSOSegments*30+1, 30)
	unknownType := largeTCP(macB, 60000, 1000)
	unknownType[1] = 77
	for _, c := range []struct {
		name   string
		frame  []byte
		maxTSO int
		want   string
	}{
		{"not offered", largeTCP(macB, 1500, 1000), 0, "tx_drop_offload"},
		{"too many segments", tooMany, 1 << 16, "tx_drop_offload"},
		{"unknown type", unknownType, 1 << 16, "tx_drop_offload"},
		{"segments above the MTU", largeTCP(macB, 60000, testMTU-39), 1 << 16, "tx_drop_too_long"},
	} {
		b := newTxBench(t, 128)
		b.Detach()
		b.enlarge(t, c.maxTSO)
		b.src.add(c.frame)
		b.pump(t)
		if got := counts(b.Counters()); got[c.want] != 1 || len(b.qp.sends) != 0 || got["tx_large"] != 0 {
			t.Errorf("%s: %d sends, counters %v, want %s", c.name, len(b.qp.sends), got, c.want)
		}
		checkAccounts(t, b.Counters())
		b.checkRing(t)
	}
}

// largeUDP is like largeTCP, for datagrams.
func largeUDP(to ipoib.MAC, n, mss int) []byte {
	f := frame(to, macA, ipoib.EtherTypeIPv4, ipv4("10.0.0.2", 28+n))
	vnet.Header{
		Flags: vnet.NeedsCsum, GSOType: vnet.GSOUDPL4, HdrLen: 42, GSOSize: uint16(mss),
		CsumStart: 34, CsumOffset: vnet.CsumOffsetUDP,
	}.Put(f)
	return f
}

// The first segment of a large frame to an unknown destination goes to the slow path, which
// resolves the address as it does for a small frame. The other segments are dropped and counted.
// Otherwise a sender of large datagrams alone would never reach its peer.
func TestTxPassesTheFirstSegmentToTheSlowPath(t *testing.T) {
	for _, c := range []struct {
		name          string
		f             []byte
		headers, size int // of the first segment, from IP on
		full          bool
		want          map[string]uint64
	}{
		{"TCP", largeTCP(macX, 60000, 1000), 40, 1000, false, map[string]uint64{"tx_slow_path": 1, "tx_segment_drop_unresolved": 59}},
		{"UDP", largeUDP(macX, 2500, 1000), 28, 1000, false, map[string]uint64{"tx_slow_path": 1, "tx_segment_drop_unresolved": 2}},
		{"one segment", largeUDP(macX, 900, 2000), 28, 900, false, map[string]uint64{"tx_slow_path": 1}},
		{"slow path full", largeUDP(macX, 2500, 1000), 28, 0, true, map[string]uint64{"tx_drop_slow_path_full": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newLargeTxBench(t)
			b.slow.full = c.full
			b.src.add(c.f)
			b.pump(t)
			c.want["tx_read"] = 1
			checkCounts(t, b.Counters(), c.want)
			b.checkRing(t)
			if c.full {
				return
			}
			if len(b.slow.frames) != 1 || len(b.qp.sends) != 0 {
				t.Fatalf("%d frames for the slow path, %d sends; want one frame", len(b.slow.frames), len(b.qp.sends))
			}
			var p join.Packet
			got, whole := b.slow.frames[0], c.f[txEther:]
			p.Parse(got[etherHeaderLen:], false, true, 0)
			payload := etherHeaderLen + c.headers
			if p.End != c.headers+c.size || len(got) != etherHeaderLen+p.End || !bytes.Equal(got[payload:], whole[payload:][:c.size]) {
				t.Fatalf("first segment %x", got)
			}
			if pseudo := checksum.Pseudo(got[26:34], got[23], len(got)-34); checksum.Sum(got[14:34], 0) != 0xffff || checksum.Sum(got[34:], pseudo) != 0xffff {
				t.Errorf("checksums of %x are wrong", got[:payload])
			}
		})
	}
}

func newLargeTxBench(t *testing.T) *txBench {
	t.Helper()
	b := newTxBench(t, 128)
	b.Detach()
	b.enlarge(t, 1<<16)
	return b
}

// enlarge attaches the bench again, to a device that segments up to maxTSO bytes.
func (b *txBench) enlarge(t *testing.T, maxTSO int) {
	t.Helper()
	b.maxTSO = maxTSO
	b.qp.mr = &fakeMR{make([]byte, 128*TxStride(b.cfg.MaxMTU, maxTSO))}
	b.attach(t, 2)
}
