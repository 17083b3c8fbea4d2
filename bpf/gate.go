package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// GateSpec describes a queue pair to the fast path.
type GateSpec struct {
	Netdev, Underlay int // indexes of the TAP and of the underlay
	MAC              [6]byte
	Addr             netip.Addr // of the queue pair's GID
	Num              uint32
	Ports            []uint16 // UDP source ports, one for each lane; there are 1, 2, 4 or 8 lanes
	MaxPacket        int      // the longest IP packet to carry, in bytes
}

// GateKeys are what a queue pair sends and accepts.
type GateKeys struct {
	QKey uint32
	PKey uint16
}

// Gate is a queue pair of the fast path, whose gate is open or closed. One goroutine at a time may call the methods for peers,
// and one at a time Open, if a method does not say otherwise. Peers and last counts remain after Close.
type Gate struct {
	path   *FastPath
	slot   uint32
	spec   GateSpec
	peers  map[[6]byte]fastPeer
	last   map[[6]byte]PeerCounts // of peers that are there when it is closed
	closed atomic.Bool
	tx, rx []*laneFlows // of each lane
}

// FastPeer is a peer of a queue pair.
type FastPeer struct {
	MAC                    [6]byte // by which the host knows it
	Addr                   netip.Addr
	Hop                    netip.Addr // on the way there: a router, or the peer itself; invalid: nothing is sent
	Num, QKey              uint32
	TrafficClass, HopLimit uint8
}

type fastPeer struct {
	slot uint32
	FastPeer
}

// PeerCounts are the frames carried to a peer and from it, and their bytes from the Ethernet header on.
type PeerCounts struct {
	TxPackets, TxBytes, RxPackets, RxBytes uint64
}

// GateCounts are the frames from the host and the packets from the underlay, by verdict.
type GateCounts struct {
	Tx, Rx           [NumVerdict]uint64
	TxBytes, RxBytes uint64 // of the frames carried, from the Ethernet header on
}

// Gate adds a queue pair, whose gate is closed. No other one has its TAP, or its number at its underlay.
func (p *FastPath) Gate(spec GateSpec) (*Gate, error) {
	if p.err != nil {
		return nil, p.err
	}
	qp := fastFastQp{
		Netdev: uint32(spec.Netdev), Underlay: uint32(spec.Underlay), Num: spec.Num,
		Max: uint32(spec.MaxPacket), Mac: spec.MAC, Lanes: uint16(len(spec.Ports)),
	}
	if n := len(spec.Ports); n < 1 || n > len(qp.Ports) || n&(n-1) != 0 || spec.MaxPacket > MaxFastPacket || !spec.Addr.IsValid() {
		return nil, fmt.Errorf("invalid gate: %d lanes (want 1, 2, 4 or 8), packets of %d bytes (at most %d), address %s",
			n, spec.MaxPacket, MaxFastPacket, spec.Addr)
	}
	qp.Addr, qp.Buckets = spec.Addr.As16(), uint32(numFlows/len(spec.Ports))
	for i, port := range spec.Ports {
		qp.Ports[i] = bits.ReverseBytes16(port) // the programs are built for little-endian machines
	}
	slot, err := p.take(&p.freeGates, ErrNoGate)
	if err != nil {
		return nil, err
	}
	p.qps[slot], p.orders[slot] = qp, fastFastOrder{}
	g := &Gate{path: p, slot: slot, spec: spec, peers: map[[6]byte]fastPeer{}}
	for lane, n := 0, len(spec.Ports); lane < n; lane++ {
		g.tx = append(g.tx, newLaneFlows(&p.orders[slot].Tx, &p.qps[slot].TxReady, lane, n))
		g.rx = append(g.rx, newLaneFlows(&p.orders[slot].Rx, &p.qps[slot].RxReady, lane, n))
	}
	for cpu := range p.running {
		*g.counted(cpu) = fastFastCounts{}
	}
	if err = p.maps.netdevs.Update(qp.Netdev, slot, ebpf.UpdateNoExist); err == nil {
		if err = p.maps.nums.Update(g.num(), slot, ebpf.UpdateNoExist); err != nil {
			err = errors.Join(err, p.maps.netdevs.Delete(qp.Netdev))
			p.settle()
		}
	}
	if err != nil {
		p.giveBack(&p.freeGates, slot)
		return nil, fmt.Errorf("add a queue pair to the fast path: %w", err)
	}
	return g, nil
}

// Open opens the gate, which is closed.
func (g *Gate) Open(keys GateKeys) {
	qp := &g.path.qps[g.slot]
	qp.Qkey, qp.Pkey = keys.QKey, keys.PKey
	g.path.settle() // programs that begin now read what was written
	atomic.StoreUint32(&qp.Open, 1)
}

// Shut closes the gate. From its return on, the programs decide to send nothing from the queue pair and accept nothing for
// it; the kernel may still pass on what they have decided in the last microseconds. Idempotent. Any goroutine may call it.
func (g *Gate) Shut() {
	if !g.closed.Load() {
		atomic.StoreUint32(&g.path.qps[g.slot].Open, 0)
		g.path.settle() // also for another caller, which may be waiting here
	}
}

// PSN returns the counter of packet sequence numbers, whose low 24 bits are the next one. The programs take numbers from it by
// atomic operations, and so may others. It is the gate's until Close.
func (g *Gate) PSN() *uint32 { return &g.path.qps[g.slot].Psn }

// SetPeer adds a peer. No other peer of the gate has its MAC, or its address and number. The caller calls Reroute when next
// hops may have changed.
func (g *Gate) SetPeer(peer FastPeer) error {
	slot, err := g.path.take(&g.path.freePeers, ErrNoPeer)
	if err != nil {
		return err
	}
	p := fastFastPeer{
		Open: 1, Qp: g.slot, Num: peer.Num, Qkey: peer.QKey, TrafficClass: peer.TrafficClass,
		HopLimit: peer.HopLimit, Mac: peer.MAC, Addr: peer.Addr.As16(),
	}
	setHop(&p, peer.Hop)
	g.path.peers[slot] = p
	e := fastPeer{slot, peer}
	if err = g.path.maps.targets.Update(g.target(e), slot, ebpf.UpdateNoExist); err == nil {
		if err = g.path.maps.sources.Update(g.source(e), slot, ebpf.UpdateNoExist); err != nil {
			err = errors.Join(err, g.path.maps.targets.Delete(g.target(e)))
			g.path.settle()
		}
	}
	if err != nil {
		g.path.giveBack(&g.path.freePeers, slot)
		return fmt.Errorf("add a peer to the fast path: %w", err)
	}
	g.peers[peer.MAC] = e
	return nil
}

func setHop(p *fastFastPeer, hop netip.Addr) {
	p.HopFamily, p.Hop = 0, [16]byte{}
	switch copy(p.Hop[:], hop.AsSlice()); {
	case hop.Is4():
		p.HopFamily = unix.AF_INET
	case hop.Is6():
		p.HopFamily = unix.AF_INET6
	}
}

// Addrs returns the addresses of the peers.
func (g *Gate) Addrs() (out []netip.Addr) {
	for _, e := range g.peers {
		out = append(out, e.Addr)
	}
	return out
}

// Reroute sets the next hops of all peers to those that a function returns for their addresses.
func (g *Gate) Reroute(hop func(to netip.Addr) netip.Addr) {
	for mac, e := range g.peers {
		was := e.Hop
		if e.Hop = hop(e.Addr); e.Hop == was {
			continue
		}
		g.peers[mac] = e
		p := &g.path.peers[e.slot]
		atomic.StoreUint32(&p.Open, 0)
		g.path.settle()
		setHop(p, e.Hop)
		atomic.StoreUint32(&p.Open, 1)
	}
}

// RemovePeer removes a peer, if it is there, and returns its last counts. From its return on, the programs send nothing to
// the peer and accept nothing from it.
func (g *Gate) RemovePeer(mac [6]byte) (last PeerCounts, err error) {
	if last, closed := g.last[mac]; closed {
		delete(g.last, mac)
		return last, nil
	}
	e, ok := g.peers[mac]
	if !ok {
		return PeerCounts{}, nil
	}
	atomic.StoreUint32(&g.path.peers[e.slot].Open, 0)
	err = errors.Join(g.path.maps.targets.Delete(g.target(e)), g.path.maps.sources.Delete(g.source(e)))
	g.path.settle()
	last = g.path.peerCounts(e.slot)
	delete(g.peers, mac)
	if err != nil { // the programs may still find the slot, which stays unused
		return last, fmt.Errorf("remove a peer from the fast path: %w", err)
	}
	g.path.giveBack(&g.path.freePeers, e.slot)
	return last, nil
}

// PeerCounts returns the counts of a peer since SetPeer; ok is false if there is no such peer.
func (g *Gate) PeerCounts(mac [6]byte) (c PeerCounts, ok bool) {
	if last, closed := g.last[mac]; closed {
		return last, true
	}
	e, ok := g.peers[mac]
	if !ok {
		return PeerCounts{}, false
	}
	return g.path.peerCounts(e.slot), true
}

func (p *FastPath) peerCounts(slot uint32) PeerCounts {
	peer := &p.peers[slot]
	return PeerCounts{
		TxPackets: atomic.LoadUint64(&peer.TxPackets), TxBytes: atomic.LoadUint64(&peer.TxBytes),
		RxPackets: atomic.LoadUint64(&peer.RxPackets), RxBytes: atomic.LoadUint64(&peer.RxBytes),
	}
}

func (g *Gate) num() fastNumKey {
	return fastNumKey{Underlay: uint32(g.spec.Underlay), Num: g.spec.Num}
}

func (g *Gate) target(e fastPeer) fastTargetKey { return fastTargetKey{Qp: g.slot, Mac: e.MAC} }

func (g *Gate) source(e fastPeer) fastSourceKey {
	return fastSourceKey{Qp: g.slot, Num: e.Num, Addr: e.Addr.As16()}
}

func (g *Gate) counted(cpu int) *fastFastCounts { return &g.path.counts[cpu*maxGates+int(g.slot)] }

// Counts returns the counts since the gate was added. Any goroutine may call it until Close.
func (g *Gate) Counts() (c GateCounts) {
	for cpu := range g.path.running {
		n := g.counted(cpu)
		addTo(c.Tx[:], n.Tx[:])
		addTo(c.Rx[:], n.Rx[:])
		c.TxBytes += atomic.LoadUint64(&n.TxBytes)
		c.RxBytes += atomic.LoadUint64(&n.RxBytes)
	}
	return c
}

// Close closes the gate and removes the queue pair and its peers. Idempotent.
func (g *Gate) Close() (err error) {
	g.Shut()
	if g.closed.Swap(true) {
		return nil
	}
	for lane := range g.tx {
		g.tx[lane].close()
		g.rx[lane].close()
	}
	last := map[[6]byte]PeerCounts{}
	for mac := range g.peers {
		counts, removed := g.RemovePeer(mac)
		last[mac], err = counts, errors.Join(err, removed)
	}
	g.last = last
	err = errors.Join(err, g.path.maps.netdevs.Delete(uint32(g.spec.Netdev)), g.path.maps.nums.Delete(g.num()))
	g.path.settle() // a program may have found the queue pair before
	if err != nil {
		return fmt.Errorf("remove a queue pair from the fast path: %w", err)
	}
	g.path.giveBack(&g.path.freeGates, g.slot)
	return nil
}
