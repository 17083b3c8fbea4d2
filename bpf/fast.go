package bpf

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Verdict is how a program of the fast path ended with a frame from the host, or with a packet from the underlay.
type Verdict int

// Verdicts. All but FastCarried and FastLost leave the frame or packet to the daemon.
const (
	FastCarried  Verdict = iota
	FastLost             // the kernel had no memory for it
	FastClosed           // the gate was closed
	FastLength           // too short, too long, or to be cut in segments
	FastKind             // not TCP, UDP or an ICMP echo; or with options, a fragment, multicast, or DHCP
	FastStranger         // from a MAC that is not the TAP's own, or no peer
	FastOrder            // an earlier one of its flow may still be with the daemon
	FastHeader           // a header that the daemon examines and counts
	FastDamaged          // a wrong checksum or ICRC, which the daemon counts
	NumVerdict
)

// MaxFastPacket is the longest IP packet that the fast path can carry, in bytes.
const MaxFastPacket = 504

// The numbers of queue pairs and of peers that a process can have on the fast path.
const (
	maxGates     = 64
	maxFastPeers = 4096
)

// Errors of a [FastPath]. Without the fast path, everything takes the way through the daemon.
var (
	ErrNoGate = fmt.Errorf("the fast path serves at most %d queue pairs", maxGates)
	ErrNoPeer = fmt.Errorf("the fast path serves at most %d peers", maxFastPeers)
)

// FastPath is the fast path of a process, for its netdevs of one network namespace. All methods may be called from
// any goroutine.
type FastPath struct {
	// AtNetdev and AtUnderlay are the descriptors of the programs for the egress of TAPs and the ingress of underlays, which
	// belong to the FastPath. The caller attaches them.
	AtNetdev, AtUnderlay int

	qps     []fastFastQp      // mapped: an element for each gate
	peers   []fastFastPeer    // mapped: an element for each peer
	counts  []fastFastCounts  // mapped: an element for each gate of each CPU
	running []fastFastRunning // mapped: an element for each CPU
	maps    fastIndexes
	clock   clock

	mu        sync.Mutex // guards what follows
	freeGates []uint32
	freePeers []uint32
}

// fastIndexes are the maps by which the programs find a queue pair or a peer.
type fastIndexes struct {
	netdevs, nums, targets, sources *ebpf.Map
}

// The descriptors of a loaded fast path belong, in this order, to the programs for netdevs and underlays, the map by
// which these find the others, the mapped maps qps, peers, counts and running, and the maps of fastIndexes.
const numFast = 11

// LoadFastPath loads the fast path. It returns its descriptors, for OpenFastPath, perhaps in the program that this process
// executes next. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func LoadFastPath() (fds []int, err error) {
	o, err := loadFastPath()
	if err != nil {
		return nil, err
	}
	defer o.Close()
	for _, fd := range []int{
		o.AtNetdev.FD(), o.AtUnderlay.FD(), o.Calls.FD(), o.Qps.FD(), o.Peers.FD(), o.Counts.FD(), o.Running.FD(),
		o.Netdevs.FD(), o.Nums.FD(), o.Targets.FD(), o.Sources.FD(),
	} {
		if fds, err = appendDuplicate(fds, fd); err != nil {
			closeAll(fds)
			return nil, err
		}
	}
	return fds, nil
}

func loadFastPath() (*fastObjects, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	spec, err := loadFast()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["crc_table"].Set(crcTable()); err != nil {
		return nil, fmt.Errorf("set the tables of the CRC: %w", err)
	}
	spec.Maps["counts"].MaxEntries, spec.Maps["running"].MaxEntries = uint32(maxGates*cpus), uint32(cpus)
	objects := new(fastObjects)
	return objects, load("fast", spec, objects)
}

// crcTable returns the tables by which a CRC-32 takes eight bytes at a time.
func crcTable() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := 1; i < len(t); i++ {
		for b, crc := range t[i-1] {
			t[i][b] = t[0][uint8(crc)] ^ crc>>8
		}
	}
	return t
}

// OpenFastPath returns the fast path with the descriptors of LoadFastPath, which it owns even after an error. It needs no
// capability, but bpf(2).
func OpenFastPath(fds []int) (*FastPath, error) {
	if len(fds) != numFast {
		closeAll(fds)
		return nil, fmt.Errorf("open the fast path: %d descriptors, want %d", len(fds), numFast)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	p := &FastPath{AtNetdev: fds[0], AtUnderlay: fds[1]}
	errs := make([]error, 9)
	p.qps, errs[0] = mapped[fastFastQp](fds[3], maxGates)
	p.peers, errs[1] = mapped[fastFastPeer](fds[4], maxFastPeers)
	p.counts, errs[2] = mapped[fastFastCounts](fds[5], maxGates*cpus)
	p.running, errs[3] = mapped[fastFastRunning](fds[6], cpus)
	p.clock, errs[4] = clockBehind(monotonic)
	for i, m := range []**ebpf.Map{&p.maps.netdevs, &p.maps.nums, &p.maps.targets, &p.maps.sources} {
		*m, errs[5+i] = ebpf.NewMapFromFD(fds[7+i])
	}
	for i := range uint32(maxGates) {
		p.freeGates = append(p.freeGates, i)
	}
	for i := range uint32(maxFastPeers) {
		p.freePeers = append(p.freePeers, i)
	}
	return p, errors.Join(errs...)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// take removes the first element of a list of free ones. It returns the error none if there is none.
func (p *FastPath) take(free *[]uint32, none error) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(*free) == 0 {
		return 0, none
	}
	slot := (*free)[0]
	*free = (*free)[1:]
	return slot, nil
}

func (p *FastPath) giveBack(free *[]uint32, slot uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*free = append(*free, slot)
}

// settle waits until no program runs that may have seen the maps as they were before. A program takes
// microseconds, unless the machine takes the processor from it.
func (p *FastPath) settle() {
	for i := range p.running {
		turns := &p.running[i].Turns
		for n := atomic.LoadUint64(turns); n&1 == 1 && n == atomic.LoadUint64(turns); {
			runtime.Gosched()
		}
	}
}

// Now returns the time of the programs' clock (CLOCK_MONOTONIC, in ns). It makes no system call.
func (p *FastPath) Now() uint64 { return p.clock.now() }

// GateSpec describes a queue pair to the fast path.
type GateSpec struct {
	Netdev, Underlay int // indexes of the TAP and of the underlay
	MAC              [6]byte
	Addr             netip.Addr // of the queue pair's GID
	Num              uint32
	Ports            []uint16 // UDP source ports, of each lane
	MaxPacket        int      // the longest IP packet to carry, in bytes
}

// GateKeys are what a queue pair sends and accepts.
type GateKeys struct {
	QKey uint32
	PKey uint16
	PSN  uint32 // of the first packet, 24 bits
}

// Gate is a queue pair of the fast path, whose gate is open or closed. One goroutine at a time may call its methods, if they
// do not say otherwise.
type Gate struct {
	path   *FastPath
	slot   uint32
	spec   GateSpec
	peers  map[[6]byte]fastPeer
	closed atomic.Bool
}

// FastPeer is a peer of a queue pair.
type FastPeer struct {
	MAC                    [6]byte // by which the host knows it
	Addr                   netip.Addr
	Num, QKey              uint32
	TrafficClass, HopLimit uint8
	FlowLabel              uint32 // 20 bits
}

type fastPeer struct {
	slot uint32
	FastPeer
}

// PeerCounts are the frames carried to a peer and from it, and their bytes from the Ethernet header on.
type PeerCounts struct {
	TxPackets, TxBytes, RxPackets, RxBytes uint64
	Heard                                  uint64 // when the last one came, see [FastPath.Now]; 0: none has
}

// GateCounts are the frames from the host and the packets from the underlay, by verdict.
type GateCounts struct {
	Tx, Rx           [NumVerdict]uint64
	TxBytes, RxBytes uint64 // of the frames carried, from the Ethernet header on
}

// Gate adds a queue pair, whose gate is closed. No other one has its TAP, or its number at its underlay.
func (p *FastPath) Gate(spec GateSpec) (*Gate, error) {
	qp := fastFastQp{
		Netdev: uint32(spec.Netdev), Underlay: uint32(spec.Underlay), Num: spec.Num,
		Max: uint32(spec.MaxPacket), Mac: spec.MAC, Lanes: uint16(len(spec.Ports)),
	}
	if n := len(spec.Ports); n < 1 || n > len(qp.Ports) || spec.MaxPacket > MaxFastPacket || !spec.Addr.IsValid() {
		return nil, fmt.Errorf("no fast path with %d lanes, packets of %d bytes and the address %s", n, spec.MaxPacket, spec.Addr)
	}
	qp.Addr = spec.Addr.As16()
	for i, port := range spec.Ports {
		qp.Ports[i] = bits.ReverseBytes16(port) // the programs are built for little-endian machines
	}
	slot, err := p.take(&p.freeGates, ErrNoGate)
	if err != nil {
		return nil, err
	}
	p.qps[slot] = qp
	g := &Gate{path: p, slot: slot, spec: spec, peers: map[[6]byte]fastPeer{}}
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

// Open opens the gate, which is closed. The fast path carries what belongs to a lane once the lane has passed on what it got
// before.
func (g *Gate) Open(keys GateKeys) {
	qp := &g.path.qps[g.slot]
	qp.Qkey, qp.Pkey, qp.Psn = keys.QKey, keys.PKey, keys.PSN
	qp.Since = g.path.Now()
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

// Sent says that a lane has passed on everything that it got from the TAP before a time of [FastPath.Now]. Any goroutine may
// call it.
func (g *Gate) Sent(lane int, before uint64) {
	if g.closed.Load() {
		return
	}
	atomic.StoreUint64(&g.path.qps[g.slot].Sent[lane], before)
}

// Received says that a lane has passed on everything that it got from the underlay before a time of [FastPath.Now]. Any
// goroutine may call it.
func (g *Gate) Received(lane int, before uint64) {
	if g.closed.Load() {
		return
	}
	atomic.StoreUint64(&g.path.qps[g.slot].Received[lane], before)
}

// PSN returns the sequence number of the next packet, in its low 24 bits.
func (g *Gate) PSN() uint32 { return atomic.LoadUint32(&g.path.qps[g.slot].Psn) }

// SetPeer adds a peer that has no other's MAC or address.
func (g *Gate) SetPeer(peer FastPeer) error {
	slot, err := g.path.take(&g.path.freePeers, ErrNoPeer)
	if err != nil {
		return err
	}
	g.path.peers[slot] = fastFastPeer{
		Open: 1, Qp: g.slot, Num: peer.Num, Qkey: peer.QKey, FlowLabel: peer.FlowLabel, TrafficClass: peer.TrafficClass,
		HopLimit: peer.HopLimit, Mac: peer.MAC, Addr: peer.Addr.As16(), Since: g.path.Now(),
	}
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

// RemovePeer removes a peer, if it is there, and returns its last counts. From its return on, the programs send nothing to
// the peer and accept nothing from it.
func (g *Gate) RemovePeer(mac [6]byte) (last PeerCounts, err error) {
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
		Heard: atomic.LoadUint64(&peer.Heard),
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
	for mac := range g.peers {
		_, removed := g.RemovePeer(mac)
		err = errors.Join(err, removed)
	}
	err = errors.Join(err, g.path.maps.netdevs.Delete(uint32(g.spec.Netdev)), g.path.maps.nums.Delete(g.num()))
	g.path.settle() // a program may have found the queue pair before
	if err != nil {
		return fmt.Errorf("remove a queue pair from the fast path: %w", err)
	}
	g.path.giveBack(&g.path.freeGates, g.slot)
	return nil
}
