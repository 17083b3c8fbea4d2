package udp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

var _ transport.FastPaths = (*Transport)(nil)

// AddGate implements transport.FastPaths.
func (t *Transport) AddGate(spec transport.GateSpec) (transport.Gate, error) {
	if t.fast == nil {
		return nil, fmt.Errorf("%w: the fast path was not loaded", errors.ErrUnsupported)
	}
	g, err := t.fast.Gate(bpf.GateSpec{
		Netdev: spec.Netdev, Underlay: t.watch.index, MAC: spec.MAC, Addr: spec.Addr, Num: uint32(spec.Num),
		Ports: spec.Ports, MaxPacket: min(spec.MaxPacket, bpf.MaxFastPacket),
	})
	if err != nil {
		return nil, tooMany(err)
	}
	return &gate{g}, nil
}

// tooMany marks the errors of a full fast path.
func tooMany(err error) error {
	if errors.Is(err, bpf.ErrNoGate) || errors.Is(err, bpf.ErrNoPeer) {
		return fmt.Errorf("%w: %w", hca.ErrNoMemory, err)
	}
	return err
}

// WhenEmpty implements transport.FastPaths.
func (t *Transport) WhenEmpty(f func()) {
	if f == nil {
		t.rx.empty.Store(nil)
		return
	}
	t.rx.empty.Store(&f)
}

// gate is a [transport.Gate] of a transport.
type gate struct{ *bpf.Gate }

// Open implements transport.Gate.
func (g *gate) Open(qkey hca.QKey, pkey hca.PKey, psn uint32) {
	g.Gate.Open(bpf.GateKeys{QKey: uint32(qkey), PKey: uint16(pkey), PSN: psn})
}

// Flow implements transport.Gate.
func (*gate) Flow(msg []byte) uint32 {
	if len(msg) < hca.EncapLen {
		return 0
	}
	return bpf.Flow(binary.BigEndian.Uint16(msg), msg[hca.EncapLen:])
}

// SetPeer implements transport.Gate.
func (g *gate) SetPeer(p transport.GatePeer) error {
	return tooMany(g.Gate.SetPeer(bpf.FastPeer{
		MAC: p.MAC, Addr: p.Addr, Num: uint32(p.Num), QKey: uint32(p.QKey),
		TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
	}))
}

// RemovePeer implements transport.Gate.
func (g *gate) RemovePeer(mac [6]byte) (hca.FastPathCounts, error) {
	last, err := g.Gate.RemovePeer(mac)
	return hca.FastPathCounts(last), err
}

// PeerCounts implements transport.Gate.
func (g *gate) PeerCounts(mac [6]byte) (hca.FastPathCounts, bool) {
	c, ok := g.Gate.PeerCounts(mac)
	return hca.FastPathCounts(c), ok
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
	return append(out,
		hca.Counter{Name: "tx_bytes", Kind: hca.CountTotal, Value: c.TxBytes},
		hca.Counter{Name: "rx_bytes", Kind: hca.CountTotal, Value: c.RxBytes},
	)
}
