package ud

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/transport"
	"ipoibd/ud/ipoib"
)

// loopTransport is a transport for benchmarks. It keeps the first train that it is given to
// send, and takes all others without a copy. Recv returns the datagrams of a train, again and
// again, as long as it is fed.
type loopTransport struct {
	transport.Transport // nil: the benchmark needs only the methods below
	addr                netip.Addr

	sent   []byte
	train  transport.Packet
	repeat []transport.Packet
	feed   chan struct{}
	wake   chan struct{}
	closed chan struct{}
}

func newLoopTransport(addr string) *loopTransport {
	return &loopTransport{
		addr: netip.MustParseAddr(addr), feed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

func (l *loopTransport) State() transport.State {
	return transport.State{Name: "loop", Index: 1, Present: true, Up: true, MTU: 9000, MAC: [6]byte{2}, Addrs: []netip.Addr{l.addr}}
}

func (l *loopTransport) WaitChange(ctx context.Context) (transport.State, error) {
	<-ctx.Done()
	return transport.State{}, ctx.Err()
}

func (l *loopTransport) SrcPort() uint16 { return 0xc000 }

func (l *loopTransport) Limits() transport.Limits {
	return transport.Limits{MaxSegs: transport.MaxSegs, MaxBytes: 65507}
}
func (l *loopTransport) Blocked() uint64         { return 0 }
func (l *loopTransport) Counters() []hca.Counter { return nil }

func (l *loopTransport) Send(pkts []transport.Packet) (int, error) {
	if l.sent == nil {
		l.train, l.sent = pkts[0], bytes.Clone(pkts[0].Data)
	}
	return len(pkts), nil
}

func (l *loopTransport) Recv(pkts []transport.Packet) (int, error) {
	select {
	case <-l.feed:
		return copy(pkts, l.repeat), nil
	case <-l.wake:
		return 0, nil
	case <-l.closed:
		return 0, hca.ErrClosed
	}
}

func (l *loopTransport) Interrupt() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loopTransport) Close() error { close(l.closed); return nil }

// pathEnd is an open software HCA with a QP in RTS.
type pathEnd struct {
	dev      hca.Device
	pd       hca.PD
	qp       hca.QP
	send, rx hca.CQ
	wire     *loopTransport
}

func newPathEnd(b *testing.B, addr string) *pathEnd {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	e := &pathEnd{wire: newLoopTransport(addr)}
	var err error
	e.dev, err = soft.Open(soft.Config{Name: addr, Transport: e.wire})
	must(err)
	e.pd, err = e.dev.AllocPD()
	must(err)
	e.send, err = e.dev.CreateCQ(hca.CQSpec{Entries: 512})
	must(err)
	e.rx, err = e.dev.CreateCQ(hca.CQSpec{Entries: 512})
	must(err)
	e.qp, err = e.pd.CreateQP(hca.QPSpec{SendWRs: 128, RecvWRs: 128, SendSGEs: 2, RecvSGEs: 1, LRO: true, LROUDP: true}, e.send, e.rx)
	must(err)
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		must(e.qp.Modify(hca.QPAttr{State: s + 1, Port: 1, QKey: 0xb1b}, hca.AttrState|hca.UDTransition(s, s+1).Required))
	}
	return e
}

func (e *pathEnd) mr(b *testing.B, size int) hca.MR {
	b.Helper()
	mr, err := e.pd.AllocMR(size, hca.AccessLocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	return mr
}

// pathPeers sends all unicast to one destination.
type pathPeers struct {
	*fakePeers
	to hca.UDDest
}

func (p *pathPeers) Unicast(ipoib.MAC) (hca.UDDest, *atomic.Uint64, bool) { return p.to, &p.sent, true }

// repeatSource returns the same frame again and again.
type repeatSource struct{ frame []byte }

func (s *repeatSource) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	sizes[0] = copy(bufs[0], s.frame)
	return 1, nil
}

func (s *repeatSource) Wake() {}

// BenchmarkPath carries large TCP frames through all that the daemon does with them, except the
// system calls: from the buffer of the TAP to the datagrams of a train, and from its
// datagrams to the slices of a frame for the TAP.
func BenchmarkPath(b *testing.B) {
	for _, mtu := range []int{1444, 2044, 4092} {
		from, to := newPathEnd(b, "10.0.0.1"), newPathEnd(b, "10.0.0.2")
		ah, err := from.pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(to.wire.addr)})
		if err != nil {
			b.Fatal(err)
		}
		peers := &pathPeers{newPeers(1), hca.UDDest{AH: ah, QPN: to.qp.Num(), QKey: 0xb1b}}
		snap := &Snapshot{}
		snap.Publish(peers)
		segments := 65507 / (mtu + 32)
		mss := mtu - 40
		f := largeTCP(macB, segments*mss, mss)
		ip := f[txPayload:]
		copy(ip[12:], []byte{10, 9, 0, 1})
		pseudo := checksum.Pseudo(ip[12:20], 6, len(ip)-20)
		ip[36], ip[37] = byte(pseudo>>8), byte(pseudo)
		ip[10], ip[11] = 0, 0
		sum := ^checksum.Sum(ip[:20], 0)
		ip[10], ip[11] = byte(sum>>8), byte(sum)
		ip[33] = 0x10 // ACK
		tx, err := NewTx(TxConfig{
			Slots: 128, MaxMTU: 4092, MTU: mtu, Scope: ipoib.ScopeLinkLocal, PKey: testPKey,
			Source: &repeatSource{f}, SlowPath: &fakeSlow{}, Peers: snap,
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := tx.Attach(from.qp, from.send, from.mr(b, 128*TxStride(4092, 1<<16)), 1<<16, 1); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("tx/%d", mtu), func(b *testing.B) {
			b.SetBytes(int64(segments * mss))
			b.ReportAllocs()
			for b.Loop() {
				if err := tx.Pump(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N*segments), "ns/segment")
		})
		t := from.wire.train
		for data := from.wire.sent; len(data) > 0; data = data[min(t.SegSize, len(data)):] {
			to.wire.repeat = append(to.wire.repeat, transport.Packet{
				Src: t.Src, Dst: t.Dst, SrcPort: 0xc000, TOS: t.TOS, TTL: 64, Data: data[:min(t.SegSize, len(data))],
			})
		}
		sink := &fakeSink{accept: -1, discard: true}
		rx, err := NewRx(RxConfig{Slots: 64, PortMTU: 4096, MTU: mtu, Sink: sink, SlowPath: &fakeSlow{}, Peers: snap})
		if err != nil {
			b.Fatal(err)
		}
		if err := rx.Attach(to.qp, to.rx, to.mr(b, 64*RxStride(4096, true)), 1); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("rx/%d", mtu), func(b *testing.B) {
			b.SetBytes(int64(segments * mss))
			b.ReportAllocs()
			before := rx.tally[Delivered].Load()
			for b.Loop() {
				to.wire.feed <- struct{}{}
				if err := rx.Pump(time.Time{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(rx.tally[Delivered].Load()-before), "ns/segment")
			if merged := rx.merged.Load(); merged == 0 {
				b.Error("no segments were joined")
			}
		})
	}
}
