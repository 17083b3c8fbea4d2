package ud_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

const (
	slots = 256
	mtu   = 2044
	qkey  = hca.QKey(0x0b1b)
)

// host is one end of a connection: a Tx and an Rx on the software HCA, each
// with its goroutine.
type host struct {
	t    *testing.T
	dev  *soft.Device
	pd   hca.PD
	qp   hca.QP
	scq  hca.CQ
	rcq  hca.CQ
	tmr  hca.MR
	rmr  hca.MR
	gid  hca.GID
	tap  *pipe
	tx   *ud.Tx
	rx   *ud.Rx
	snap ud.Snapshot
	gen  uint32

	stop  atomic.Bool
	pumps sync.WaitGroup
}

func newHost(t *testing.T, fabric *memfabric.Fabric, name string, addr netip.Addr) *host {
	dev, err := soft.Open(soft.Config{Name: name, Transport: fabric.Attach(name, 9000, addr)})
	check(t, err)
	h := &host{t: t, dev: dev, tap: newPipe(), gid: hca.GIDFromAddr(addr)}
	tcfg := ud.TxConfig{
		Slots: slots, MaxMTU: mtu, MTU: mtu, Scope: ipoib.ScopeLinkLocal, PKey: hca.PKeyDefault,
		Source: h.tap, SlowPath: refuser{}, Peers: &h.snap,
	}
	rcfg := ud.RxConfig{Slots: slots, PortMTU: 4096, MTU: mtu, Sink: h.tap, SlowPath: refuser{}, Peers: &h.snap}
	h.tx, err = ud.NewTx(tcfg)
	check(t, err)
	h.rx, err = ud.NewRx(rcfg)
	check(t, err)
	h.pd, err = dev.AllocPD()
	check(t, err)
	h.tmr, err = h.pd.AllocMR(slots*ud.TxStride(mtu, 0), 0)
	check(t, err)
	h.rmr, err = h.pd.AllocMR(slots*ud.RxStride(rcfg.PortMTU, false), hca.AccessLocalWrite)
	check(t, err)
	h.scq, err = dev.CreateCQ(hca.CQSpec{Entries: slots})
	check(t, err)
	h.rcq, err = dev.CreateCQ(hca.CQSpec{Entries: slots})
	check(t, err)
	h.qp, err = h.pd.CreateQP(hca.QPSpec{SendWRs: slots, RecvWRs: slots, SendSGEs: 1, RecvSGEs: 1}, h.scq, h.rcq)
	check(t, err)
	return h
}

// up moves the QP to RTS, attaches it and starts the pumps.
func (h *host) up() {
	h.modify(hca.QPInit, hca.AttrPKeyIndex|hca.AttrPort|hca.AttrQKey)
	h.modify(hca.QPRTR, 0)
	h.modify(hca.QPRTS, hca.AttrSQPSN)
	h.gen++
	check(h.t, h.tx.Attach(h.qp, h.scq, h.tmr, 0, h.gen))
	check(h.t, h.rx.Attach(h.qp, h.rcq, h.rmr, h.gen))
	h.stop.Store(false)
	h.pumps.Go(func() { h.pump(h.tx.Pump) })
	h.pumps.Go(func() { h.pump(func() error { return h.rx.Pump(time.Time{}) }) })
}

func (h *host) pump(once func() error) {
	for !h.stop.Load() {
		if err := once(); err != nil {
			h.t.Error(err)
			return
		}
	}
}

// down follows the orderly sequence of doc.go: ERR, drain, RESET, detach.
func (h *host) down() {
	h.stop.Store(true)
	h.tx.Wake()
	h.scq.Wake()
	h.rcq.Wake()
	h.pumps.Wait()
	h.modify(hca.QPErr, 0)
	check(h.t, h.tx.Drain(time.Now().Add(time.Second)))
	check(h.t, h.rx.Drain(time.Now().Add(time.Second)))
	if s, r := h.tx.Outstanding(), h.rx.Outstanding(); s+r != 0 {
		h.t.Errorf("%d sends and %d receives outstanding after the drain", s, r)
	}
	h.modify(hca.QPReset, 0)
	h.tx.Detach()
	h.rx.Detach()
}

func (h *host) modify(to hca.QPState, mask hca.QPAttrMask) {
	h.t.Helper()
	check(h.t, h.qp.Modify(hca.QPAttr{State: to, Port: 1, QKey: qkey}, mask|hca.AttrState))
}

func (h *host) close() {
	for _, c := range []interface{ Close() error }{h.qp, h.scq, h.rcq, h.tmr, h.rmr} {
		check(h.t, c.Close())
	}
}

// publishPeer publishes a snapshot with one peer and returns its AH.
func (h *host) publishPeer(peer *host) hca.AH {
	ah, err := h.pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: peer.gid, HopLimit: 64})
	check(h.t, err)
	h.snap.Publish(&onePeer{self: h, peer: peer, to: hca.UDDest{AH: ah, QPN: peer.qp.Num(), QKey: qkey}})
	return ah
}

// onePeer is a snapshot with one peer.
type onePeer struct {
	self, peer *host
	to         hca.UDDest

	sent, heard atomic.Uint64 // bytes
}

func macOf(gid hca.GID) ipoib.MAC { return ipoib.MAC{2, 0, gid[12], gid[13], gid[14], gid[15]} }

func (p *onePeer) Unicast(dst ipoib.MAC) (hca.UDDest, *atomic.Uint64, bool) {
	return p.to, &p.sent, dst == macOf(p.peer.gid)
}
func (p *onePeer) Group(hca.GID) (hca.UDDest, bool) { return hca.UDDest{}, false }
func (p *onePeer) PeerMAC(from hca.UDSource) (ipoib.MAC, *atomic.Uint64) {
	return macOf(from.GID), &p.heard
}
func (p *onePeer) InUse(hca.UDSource) bool                 { return false }
func (p *onePeer) IsHost(src ipoib.MAC) bool               { return src == macOf(p.self.gid) }
func (p *onePeer) StationMAC(netip.Addr) (ipoib.MAC, bool) { return macOf(p.self.gid), true }
func (p *onePeer) FromHost(src ipoib.MAC) bool             { return src == macOf(p.self.gid) }
func (p *onePeer) Self(from hca.UDSource) bool {
	return from == hca.UDSource{GID: p.self.gid, QPN: p.self.qp.Num()}
}
func (p *onePeer) Epoch() uint64 { return 1 }

// refuser is a slow path that is always full.
type refuser struct{}

func (refuser) FromHost([]byte) bool                   { return false }
func (refuser) FromFabric([]byte, ud.Sender) ud.Reason { return ud.SlowPathFull }

// pipe is a TAP in memory that runs inside synctest.
type pipe struct {
	in   chan []byte
	wake chan struct{}
	mu   sync.Mutex
	out  [][]byte
}

func newPipe() *pipe { return &pipe{in: make(chan []byte, 10000), wake: make(chan struct{}, 1)} }

func (p *pipe) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	select {
	case f := <-p.in:
		sizes[0] = copy(bufs[0], f)
		return 1 + p.more(bufs[1:], sizes[1:]), nil
	case <-p.wake:
		return 0, nil
	}
}

func (p *pipe) more(bufs [][]byte, sizes []int) int {
	for i := range bufs {
		select {
		case f := <-p.in:
			sizes[i] = copy(bufs[i], f)
		default:
			return i
		}
	}
	return len(bufs)
}

func (p *pipe) WriteVectors(frames [][][]byte, accepted []bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range frames {
		p.out, accepted[i] = append(p.out, slices.Concat(f...)), true
	}
	return len(frames), nil
}

func (p *pipe) written() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// frameTo returns the i-th frame of a host to another.
func frameTo(from, to *host, i int) []byte {
	f := make([]byte, 10+14+60+i%(mtu-60))
	src, dst := macOf(from.gid), macOf(to.gid)
	copy(f[10:], dst[:])
	copy(f[16:], src[:])
	binary.BigEndian.PutUint16(f[22:], uint16(ipoib.EtherTypeIPv4))
	f[24] = 0x45
	binary.BigEndian.PutUint32(f[50:], uint32(i))
	return f
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func value(cs []hca.Counter, name string) uint64 {
	i := slices.IndexFunc(cs, func(c hca.Counter) bool { return c.Name == name })
	if i < 0 {
		return 0
	}
	return cs[i].Value
}

// Two hosts on the software HCA exchange frames unchanged and in order, and
// count every frame, while both queue pairs are taken down and up again.
func TestTwoHostsOnSoftwareHCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := memfabric.New(1)
		a := newHost(t, fabric, "a", netip.MustParseAddr("192.0.2.1"))
		b := newHost(t, fabric, "b", netip.MustParseAddr("192.0.2.2"))
		ahs := []hca.AH{a.publishPeer(b), b.publishPeer(a)}
		const rounds, burst = 20, 200
		for round := range rounds {
			a.up()
			b.up()
			for i := range burst {
				a.tap.in <- frameTo(a, b, round*burst+i)
				b.tap.in <- frameTo(b, a, round*burst+i)
			}
			synctest.Wait()
			time.Sleep(time.Second) // the timer makes Tx reap the outstanding sends
			synctest.Wait()
			if n := a.tx.Outstanding() + b.tx.Outstanding(); n != 0 {
				t.Errorf("%d sends outstanding at rest", n)
			}
			a.down()
			b.down()
		}
		for i := range rounds * burst {
			if got := b.tap.written()[i]; !bytes.Equal(got, frameTo(a, b, i)) {
				t.Fatalf("frame %d came as %x", i, got)
			}
		}
		for _, h := range []*host{a, b} {
			tx, rx := h.tx.Counters(), h.rx.Counters()
			if value(tx, "tx_sent") != rounds*burst || value(rx, "rx_delivered") != rounds*burst || len(h.tap.written()) != rounds*burst {
				t.Errorf("%s: %v %v, want %d frames both ways", h.gid, tx, rx, rounds*burst)
			}
			if err := h.tx.Pump(); !errors.Is(err, ud.ErrDetached) {
				t.Errorf("pump when down: %v", err)
			}
		}
		for i, h := range []*host{a, b} {
			check(t, ahs[i].Close())
			h.close()
			check(t, h.pd.Close())
			check(t, h.dev.Close())
		}
		check(t, fabric.Close())
	})
}
