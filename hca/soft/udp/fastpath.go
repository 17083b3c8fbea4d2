package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

var _ transport.FastPaths = (*Transport)(nil)

// AddGate implements transport.FastPaths.
func (t *Transport) AddGate(spec transport.GateSpec) (transport.Gate, error) {
	switch {
	case t.fast == nil:
		return nil, fmt.Errorf("%w: the fast path was not loaded", errors.ErrUnsupported)
	case !t.watch.ethernet:
		return nil, fmt.Errorf("%w: the underlay has no Ethernet header", errors.ErrUnsupported)
	}
	below, err := t.fast.Gate(bpf.GateSpec{
		Netdev: spec.Netdev, Underlay: t.watch.index, MAC: spec.MAC, Addr: spec.Addr, Num: uint32(spec.Num),
		Ports: spec.Ports,
	})
	if err != nil {
		return nil, tooMany(err)
	}
	g := &gate{Gate: below, of: &t.gates, addr: spec.Addr}
	if err := t.gates.add(g); err != nil {
		return nil, errors.Join(err, below.Close())
	}
	return g, nil
}

// tooMany marks the errors of a full fast path.
func tooMany(err error) error {
	if errors.Is(err, bpf.ErrNoGate) || errors.Is(err, bpf.ErrNoPeer) {
		return fmt.Errorf("%w: %w", hca.ErrNoMemory, err)
	}
	return err
}

// WhenEmpty implements transport.FastPaths.
func (t *Transport) WhenEmpty(f func()) { t.rx.empty.Store(&f) }

// gate is a [transport.Gate] of a transport.
type gate struct {
	*bpf.Gate
	of   *gates
	addr netip.Addr

	mu sync.Mutex // guards the peers of the Gate

	stateMu sync.Mutex    // guards what follows, and the gate's opening, shutting and closing
	keys    *bpf.GateKeys // with which it should be open; nil: it should not
	refused error         // why it stays shut all the same; nil: it need not
}

// Open implements transport.Gate.
func (g *gate) Open(qkey hca.QKey, pkey hca.PKey) {
	g.stateMu.Lock()
	defer g.stateMu.Unlock()
	keys := bpf.GateKeys{QKey: uint32(qkey), PKey: uint16(pkey)}
	if g.keys != nil && *g.keys == keys {
		return
	}
	g.Gate.Shut() // while its keys change
	g.keys = &keys
	if g.refused == nil {
		g.Gate.Open(keys)
	}
}

// Shut implements transport.Gate.
func (g *gate) Shut() {
	g.stateMu.Lock()
	defer g.stateMu.Unlock()
	g.keys = nil
	g.Gate.Shut()
}

// refuse keeps the gate shut for a reason or, if that is nil, no longer.
func (g *gate) refuse(why error) {
	g.stateMu.Lock()
	defer g.stateMu.Unlock()
	was := g.refused
	g.refused = why
	switch {
	case why != nil:
		g.Gate.Shut()
	case was != nil && g.keys != nil:
		g.Gate.Open(*g.keys)
	}
}

// Refused implements transport.Gate.
func (g *gate) Refused() error {
	g.stateMu.Lock()
	defer g.stateMu.Unlock()
	return g.refused
}

// Flow implements transport.Gate.
func (*gate) Flow(msg []byte) uint32 {
	if len(msg) < hca.EncapLen {
		return 0
	}
	return bpf.Flow(binary.BigEndian.Uint16(msg), msg[hca.EncapLen:])
}

// AddPeer implements transport.Gate.
func (g *gate) AddPeer(p transport.GatePeer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return tooMany(g.Gate.AddPeer(bpf.FastPeer{
		MAC: p.MAC, Addr: p.Addr, Hop: g.of.hops(g.addr, p.Addr)[p.Addr], Num: uint32(p.Num), QKey: uint32(p.QKey),
		TrafficClass: p.TrafficClass, HopLimit: p.HopLimit,
	}))
}

// reroute looks up the next hops of all peers again. It holds mu only to read and to change them.
func (g *gate) reroute() {
	g.mu.Lock()
	addrs := g.Addrs()
	g.mu.Unlock()
	hops := g.of.hops(g.addr, addrs...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Reroute(func(to netip.Addr) netip.Addr {
		hop, known := hops[to]
		if !known { // it was added meanwhile
			hop = g.of.hops(g.addr, to)[to]
		}
		return hop
	})
}

// RemovePeer implements transport.Gate.
func (g *gate) RemovePeer(mac [6]byte) (hca.FastPathCounts, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last, err := g.Gate.RemovePeer(mac)
	return hca.FastPathCounts(last), err
}

// PeerCounts implements transport.Gate.
func (g *gate) PeerCounts(mac [6]byte) (hca.FastPathCounts, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.Gate.PeerCounts(mac)
	return hca.FastPathCounts(c), ok
}

// Close implements transport.Gate.
func (g *gate) Close() error {
	g.of.remove(g)
	g.Shut()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stateMu.Lock() // a Shut that runs ends before another queue pair has the place
	defer g.stateMu.Unlock()
	return g.Gate.Close()
}

// fastReasons are the names of the verdicts of the fast path's programs.
var fastReasons = [bpf.NumVerdict]string{
	bpf.FastCarried: "packets", bpf.FastLost: "drop_no_memory", bpf.FastClosed: "closed", bpf.FastLength: "length",
	bpf.FastKind: "kind", bpf.FastStranger: "stranger", bpf.FastOrder: "order", bpf.FastHeader: "header", bpf.FastDamaged: "damaged",
}

// Counters implements transport.Gate.
func (g *gate) Counters() (out []hca.Counter) {
	c := g.Counts()
	for v, name := range fastReasons {
		kind := hca.CountTotal
		if bpf.Verdict(v) == bpf.FastLost {
			kind = hca.CountDrop
		}
		if bpf.Verdict(v) != bpf.FastHeader && bpf.Verdict(v) != bpf.FastDamaged { // not from the host
			out = append(out, hca.Counter{Name: "tx_" + name, Kind: kind, Value: c.Tx[v]})
		}
		out = append(out, hca.Counter{Name: "rx_" + name, Kind: kind, Value: c.Rx[v]})
	}
	refused := uint64(0)
	if g.Refused() != nil {
		refused = 1
	}
	return append(out,
		hca.Counter{Name: "refused", Kind: hca.CountGauge, Value: refused},
		hca.Counter{Name: "tx_bytes", Kind: hca.CountTotal, Value: c.TxBytes},
		hca.Counter{Name: "rx_bytes", Kind: hca.CountTotal, Value: c.RxBytes},
	)
}
