package soft

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

var tcpHeader = hcatest.TCPHeader()

// sendLarge posts a large send of n bytes, in segments of 1000.
func (r *rig) sendLarge(ah hca.AH, n int) {
	r.Helper()
	wr := hca.SendWR{
		SGList: []hca.SGE{r.mr.SGE(0, n)}, UD: hca.UDDest{AH: ah, QPN: 5, QKey: rigQKey},
		LSO: hca.LSO{Header: tcpHeader, MSS: 1000},
	}
	if _, err := r.qp.PostSend([]hca.SendWR{wr}); err != nil {
		r.Fatal(err)
	}
}

// lowering is a transport whose limits fall when it gets its first train.
type lowering struct {
	transport.Transport
	low atomic.Bool
}

func (l *lowering) Limits() transport.Limits {
	if l.low.Load() {
		return transport.Limits{MaxSegs: 1}
	}
	return l.Transport.Limits()
}

func (l *lowering) Send(pkts []transport.Packet) (int, error) {
	for i := range pkts {
		if pkts[i].Segs > 1 {
			n, err := l.Transport.Send(pkts[:i])
			if n < i || err != nil {
				return n, err
			}
			l.low.Store(true)
			return i, transport.ErrLimits
		}
	}
	return l.Transport.Send(pkts)
}

// When the transport lowers its limits, the datagrams of the refused train are sent one by
// one, each once, in order, with the ICRC for the identification that they have then.
func TestLoweredLimitsLoseNothing(t *testing.T) {
	var l lowering
	bubble(t, func(c *Config) { l.Transport, c.Transport = c.Transport, &l }, func(r *rig) {
		ah := r.ah(rigPeer)
		var psns []uint32
		r.fabric.Capture(func(c memfabric.Capture) {
			p := roce.Path{Src: c.Packet.Src, Dst: c.Packet.Dst, SrcPort: c.Packet.SrcPort, ID: c.Packet.ID}
			var u roce.UDSend
			err := u.Parse(c.Packet.Data)
			if m := new(roce.Verifier).Verify(&p, true, c.Packet.Data); m != roce.MatchKnownID || err != nil || c.Packet.ID != 0 {
				t.Errorf("datagram %d with identification %d: ICRC %v, %v", len(psns), c.Packet.ID, m, err)
			}
			psns = append(psns, u.PSN)
		})
		r.sendOn(ah, 5) // a single datagram, which is longer than the first segment
		r.sendLarge(ah, 3000)
		r.sendLarge(ah, 2500)
		synctest.Wait()
		for i, psn := range psns {
			if psn != uint32(i) {
				t.Errorf("PSNs %v, want them in order", psns)
			}
		}
		if n := r.completed(); n != 3 || len(psns) != 7 || !l.low.Load() {
			t.Errorf("%d sends completed with %d datagrams, limits lowered: %v", n, len(psns), l.low.Load())
		}
		r.wantCounts(map[string]uint64{"tx_packets": 7, "tx_drop_no_room": 0, "tx_drop_transport": 0})
		_ = ah.Close()
	})
}

// Every datagram of a train that finds no room counts as dropped.
func TestDroppedTrainsCountDatagrams(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		ah := r.ah(rigPeer)
		r.port.SetWritable(false)
		r.sendLarge(ah, 60000)
		r.sendLarge(ah, 60000)
		time.Sleep(time.Second)
		if n := r.completed(); n != 2 {
			t.Errorf("%d of 2 sends completed", n)
		}
		r.wantCounts(map[string]uint64{"tx_drop_no_room": 120, "tx_packets": 0})
		_ = ah.Close()
	})
}

// Counters count messages, not receives: those that were joined, and those that no receive was
// left for.
func TestJoinedMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		a, b := newRigOn(t, f, "a", nil, testV4), newRigOn(t, f, "b", nil, testV4b)
		if err := b.qp.Close(); err != nil {
			t.Fatal(err)
		}
		spec := b.qp.Spec()
		spec.LRO = true
		b.qp = have(b.pd.CreateQP(spec, b.send, b.recv))(t)
		b.up()
		b.postRecv(10)
		ah := a.ah(testV4b)
		wr := hca.SendWR{
			SGList: []hca.SGE{a.mr.SGE(0, 60000)}, UD: hca.UDDest{AH: ah, QPN: b.qp.Num(), QKey: rigQKey},
			LSO: hca.LSO{Header: tcpHeader, MSS: 1000},
		}
		if _, err := a.qp.PostSend([]hca.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * soleLimit)
		wcs := make([]hca.WC, 20)
		n, err := b.recv.Poll(wcs)
		messages := 0
		for _, wc := range wcs[:n] {
			messages += max(1, wc.LRO.Segments)
		}
		if n != 10 || messages <= n || err != nil { // a receive has room for three
			t.Errorf("%d messages in %d receives, %v", messages, n, err)
		}
		b.wantCounts(map[string]uint64{"rx_packets": 60, "rx_delivered": uint64(messages), "rx_drop_no_recv": uint64(60 - messages)})
		b.wantAccounted()
		_ = ah.Close()
		a.close()
		b.close()
	})
}

// largeFlow is a flow of large sends: each round carries one frame of 60 segments.
func largeFlow(from, to *rig, ah hca.AH, mss int) *flow {
	f := newFlow(from, to, ah, 60, 1448)
	f.sends = []hca.SendWR{{
		SGList: []hca.SGE{from.mr.SGE(0, 60*mss)}, UD: f.sends[0].UD, LSO: hca.LSO{Header: tcpHeader, MSS: mss},
	}}
	return f
}

// roundLarge carries one frame from end to end.
func (f *flow) roundLarge(t testing.TB) {
	if _, err := f.to.qp.PostRecv(f.recvs); err != nil {
		t.Fatal(err)
	}
	if _, err := f.from.qp.PostSend(f.sends); err != nil {
		t.Fatal(err)
	}
	f.drainN(t, f.from.send, 1)
	f.drainN(t, f.to.recv, len(f.recvs))
}

// Carrying a large send from post to completion allocates nothing at either end.
func TestNoAllocationsOfLargeSends(t *testing.T) {
	a, b := pairOn(t)
	ah := a.ah(testV4b)
	f := largeFlow(a, b, ah, 1000)
	for range 20 {
		f.roundLarge(t)
	}
	if n := testing.AllocsPerRun(200, func() { f.roundLarge(t) }); n != 0 {
		t.Errorf("%v allocations per frame of %d segments", n, len(f.recvs))
	}
	_ = ah.Close()
	a.close()
	b.close()
}

// sink is a transport that takes everything and sends nothing.
type sink struct{ transport.Transport }

func (sink) Send(pkts []transport.Packet) (int, error) { return len(pkts), nil }

// BenchmarkPost sends 60,000 bytes of payload as one large send, and as single sends whose
// headers are complete, to a transport that discards them: the cost of posts, headers,
// checksums and ICRCs.
func BenchmarkPost(b *testing.B) {
	for _, mss := range []int{1388, 1988, 4036} {
		r := newRigOn(b, memfabric.New(1), "a", func(c *Config) { c.Transport = sink{c.Transport} }, testV4)
		r.port.SetMTU(9000)
		for r.dev.lanes[0].env.Load().GIDs[0].MaxPayload < mss+len(tcpHeader) {
			time.Sleep(time.Millisecond)
		}
		ah := r.ah(rigPeer)
		n := 60000 / mss
		to := hca.UDDest{AH: ah, QPN: 5, QKey: rigQKey}
		large := []hca.SendWR{{SGList: []hca.SGE{r.mr.SGE(0, n*mss)}, UD: to, LSO: hca.LSO{Header: tcpHeader, MSS: mss}}}
		var singles []hca.SendWR
		for i := range n {
			singles = append(singles, hca.SendWR{SGList: []hca.SGE{r.mr.SGE(i*mss, mss+len(tcpHeader))}, UD: to})
		}
		for _, c := range []struct {
			name string
			wrs  []hca.SendWR
		}{{"large", large}, {"single", singles}} {
			b.Run(fmt.Sprintf("%d/%s", mss, c.name), func(b *testing.B) {
				wcs := make([]hca.WC, n)
				b.SetBytes(int64(n * mss))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.qp.PostSend(c.wrs); err != nil {
						b.Fatal(err)
					}
					_, _ = r.send.Poll(wcs)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/segment")
			})
		}
	}
}
