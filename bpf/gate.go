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
}

// GateKeys are the Q_Key that a queue pair accepts, and the P_Key that it sends and accepts.
type GateKeys struct {
	QKey uint32
	PKey uint16
}

// Gate is a queue pair of the fast path, whose gate is open or closed. Unless a method says otherwise, calls must not overlap:
// neither those of the methods for peers, nor those of Open. The last counts remain after Close, those of a peer until
// RemovePeer.
type Gate struct {
	path   *FastPath
	slot   uint32
	spec   GateSpec
	peers  map[[6]byte]uint32     // by MAC: the slot of each
	last   map[[6]byte]PeerCounts // of peers that are there when it is closed
	closed atomic.Bool
	final  GateCounts   // once closed
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

// PeerCounts are the frames carried to a peer and from it, and the bytes of their IP packets.
type PeerCounts struct {
	TxPackets, TxBytes, RxPackets, RxBytes uint64
}

// GateCounts are the frames from the host and the packets from the underlay, by verdict.
type GateCounts struct {
	Tx, Rx           [NumVerdict]uint64
	TxBytes, RxBytes uint64 // of the frames carried, from the Ethernet header on
}

// Gate adds a queue pair with its gate closed. No other queue pair may use the same TAP, or the same number at the same underlay.
func (p *FastPath) Gate(spec GateSpec) (*Gate, error) {
	if p.err != nil {
		return nil, p.err
	}
	qp := fastQp{
		Netdev: uint32(spec.Netdev), Underlay: uint32(spec.Underlay), Num: spec.Num,
		Mac: spec.MAC, Lanes: uint16(len(spec.Ports)),
	}
	if n := len(spec.Ports); n < 1 || n > len(qp.Ports) || n&(n-1) != 0 || !spec.Addr.IsValid() {
		return nil, fmt.Errorf("invalid gate: %d lanes (want 1, 2, 4 or 8), address %s", n, spec.Addr)
	}
	qp.Addr, qp.Buckets = spec.Addr.As16(), uint32(numFlows/len(spec.Ports))
	for i, port := range spec.Ports {
		qp.Ports[i] = bits.ReverseBytes16(port) // the programs are built for little-endian machines
	}
	slot, err := p.take(&p.freeGates, ErrNoGate)
	if err != nil {
		return nil, err
	}
	p.qps[slot], p.orders[slot] = qp, fastOrder{}
	g := &Gate{path: p, slot: slot, spec: spec, peers: map[[6]byte]uint32{}}
	for lane, n := 0, len(spec.Ports); lane < n; lane++ {
		g.tx = append(g.tx, newLaneFlows(&p.orders[slot].Tx, &p.qps[slot].TxReady, lane, n))
		g.rx = append(g.rx, newLaneFlows(&p.orders[slot].Rx, &p.qps[slot].RxReady, lane, n))
	}
	for cpu := range p.running {
		*g.counted(cpu) = fastCounts{}
	}
	if err := p.index(&p.freeGates, slot, entry{p.maps.netdevs, qp.Netdev}, entry{p.maps.nums, g.num()}); err != nil {
		return nil, fmt.Errorf("add a queue pair to the fast path: %w", err)
	}
	return g, nil
}

// entry is a place in a map by which the programs find a slot.
type entry struct {
	in  *ebpf.Map
	key any
}

// index makes a slot found by two entries, or by none of them. It gives the slot back after an error, unless the programs
// may still find it.
func (p *FastPath) index(free *[]uint32, slot uint32, a, b entry) error {
	err := a.in.Update(a.key, slot, ebpf.UpdateNoExist)
	if err == nil {
		if err = b.in.Update(b.key, slot, ebpf.UpdateNoExist); err == nil {
			return nil
		}
		undone := a.in.Delete(a.key)
		p.settle() // a program may have found the slot before
		if undone != nil {
			return errors.Join(err, undone)
		}
	}
	p.giveBack(free, slot)
	return err
}

// Open opens the gate, which must be closed.
func (g *Gate) Open(keys GateKeys) {
	qp := &g.path.qps[g.slot]
	qp.Qkey, qp.Pkey = keys.QKey, keys.PKey
	g.path.settle() // programs that begin now read what was written
	atomic.StoreUint32(&qp.Open, 1)
}

// Shut closes the gate. From its return on, the programs decide to send nothing from the queue pair and accept nothing for
// it; the kernel may still pass on what they have decided in the last microseconds. Idempotent, also after Close. Any goroutine
// may call it, but not while Close runs.
func (g *Gate) Shut() {
	if !g.closed.Load() {
		atomic.StoreUint32(&g.path.qps[g.slot].Open, 0)
		g.path.settle() // also for another caller, which may be waiting here
	}
}

// PSN returns the counter of packet sequence numbers, whose low 24 bits are the next one. The programs take numbers from it by
// atomic operations, and so may others. It is the gate's until Close.
func (g *Gate) PSN() *uint32 { return &g.path.qps[g.slot].Psn }

// AddPeer adds a peer. No other peer of the gate has its MAC, or its address and number. The caller calls Reroute when next
// hops may have changed.
func (g *Gate) AddPeer(peer FastPeer) error {
	slot, err := g.path.take(&g.path.freePeers, ErrNoPeer)
	if err != nil {
		return err
	}
	p := fastPeer{
		Open: 1, Qp: g.slot, Num: peer.Num, Qkey: peer.QKey, TrafficClass: peer.TrafficClass,
		HopLimit: peer.HopLimit, Mac: peer.MAC, Addr: peer.Addr.As16(),
	}
	setHop(&p, peer.Hop)
	g.path.peers[slot] = p
	if err := g.path.index(&g.path.freePeers, slot, g.target(&p), g.source(&p)); err != nil {
		return fmt.Errorf("add a peer to the fast path: %w", err)
	}
	g.peers[peer.MAC] = slot
	return nil
}

// target and source are the entries of a peer in the maps.
func (g *Gate) target(p *fastPeer) entry {
	return entry{g.path.maps.targets, fastTargetKey{Qp: g.slot, Mac: p.Mac}}
}

func (g *Gate) source(p *fastPeer) entry {
	return entry{g.path.maps.sources, fastSourceKey{Qp: g.slot, Num: p.Num, Addr: p.Addr}}
}

func addrOf(p *fastPeer) netip.Addr { return netip.AddrFrom16(p.Addr).Unmap() }

func setHop(p *fastPeer, hop netip.Addr) {
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
	for _, slot := range g.peers {
		out = append(out, addrOf(&g.path.peers[slot]))
	}
	return out
}

// Reroute sets the next hops of all peers to those that a function returns for their addresses.
func (g *Gate) Reroute(hop func(to netip.Addr) netip.Addr) {
	for _, slot := range g.peers {
		p := &g.path.peers[slot]
		var next fastPeer
		if setHop(&next, hop(addrOf(p))); next.HopFamily == p.HopFamily && next.Hop == p.Hop {
			continue
		}
		atomic.StoreUint32(&p.Open, 0)
		g.path.settle()
		p.HopFamily, p.Hop = next.HopFamily, next.Hop
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
	slot, ok := g.peers[mac]
	if !ok {
		return PeerCounts{}, nil
	}
	p := &g.path.peers[slot]
	atomic.StoreUint32(&p.Open, 0)
	target, source := g.target(p), g.source(p)
	err = errors.Join(target.in.Delete(target.key), source.in.Delete(source.key))
	g.path.settle()
	last = g.path.peerCounts(slot)
	delete(g.peers, mac)
	if err != nil { // the programs may still find the slot, which stays unused
		return last, fmt.Errorf("remove a peer from the fast path: %w", err)
	}
	g.path.giveBack(&g.path.freePeers, slot)
	return last, nil
}

// PeerCounts returns the counts of a peer since AddPeer; ok is false if there is no such peer.
func (g *Gate) PeerCounts(mac [6]byte) (c PeerCounts, ok bool) {
	if last, closed := g.last[mac]; closed {
		return last, true
	}
	slot, ok := g.peers[mac]
	if !ok {
		return PeerCounts{}, false
	}
	return g.path.peerCounts(slot), true
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

func (g *Gate) counted(cpu int) *fastCounts { return &g.path.counts[cpu*maxGates+int(g.slot)] }

// Counts returns the counts since the gate was added, also after Close. Any goroutine may call it, but not while Close runs.
func (g *Gate) Counts() GateCounts {
	if g.closed.Load() {
		return g.final
	}
	return g.counts()
}

func (g *Gate) counts() (c GateCounts) {
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
	err = errors.Join(g.path.maps.netdevs.Delete(uint32(g.spec.Netdev)), g.path.maps.nums.Delete(g.num()))
	g.path.settle() // a program may have found the queue pair before
	g.final = g.counts()
	last := map[[6]byte]PeerCounts{}
	for mac := range g.peers {
		counts, removed := g.RemovePeer(mac)
		last[mac], err = counts, errors.Join(err, removed)
	}
	g.last = last
	if err != nil {
		return fmt.Errorf("remove a queue pair from the fast path: %w", err)
	}
	g.path.giveBack(&g.path.freeGates, g.slot)
	return nil
}
