package memfabric

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ipoibd/hca/soft/transport"
)

// DefaultQueue bounds a port's receive queue, in datagrams, unless WithQueue sets another
// bound: a few milliseconds at full speed.
const DefaultQueue = 4096

// firstPort is the UDP source port of the first port attached (RoCEv2 uses
// 0xC000-0xFFFF).
const firstPort = 0xc000

// Fabric is one broadcast domain. Its methods may be called from any
// goroutine.
type Fabric struct {
	seed  uint64
	queue int // of each port, datagrams

	showIDs bool // receivers see the IPv4 identification

	mu       sync.Mutex // guards the fields below, and the state of all ports
	attached int        // ports ever attached
	ports    map[string]*Port
	routes   map[netip.Addr][]*Port // ports by address and by joined group
	cuts     map[pair]bool
	cond     Conditions
	dice     map[pair]*dice
	capture  func(Capture)
	free     []*datagram
	seq      uint64
}

// pair is a direction between two ports.
type pair struct{ from, to string }

// Option configures a new fabric.
type Option func(*Fabric)

// WithConditions sets the initial conditions, like [Fabric.SetConditions].
func WithConditions(c Conditions) Option { return func(f *Fabric) { f.cond = c } }

// WithQueue bounds each port's receive queue to n datagrams, at least 1.
func WithQueue(n int) Option { return func(f *Fabric) { f.queue = max(n, 1) } }

// WithIDs shows the IPv4 identification of each datagram to its receivers.
func WithIDs() Option { return func(f *Fabric) { f.showIDs = true } }

// New returns an empty fabric; seed determines all its random choices.
func New(seed uint64, opts ...Option) *Fabric {
	f := &Fabric{
		seed:   seed,
		queue:  DefaultQueue,
		ports:  make(map[string]*Port),
		routes: make(map[netip.Addr][]*Port),
		cuts:   make(map[pair]bool),
		dice:   make(map[pair]*dice),
	}
	for _, o := range opts {
		o(f)
	}
	return f
}

// Attach attaches a port that is up, with a netdev of this name, MTU (bytes of an IP
// packet) and addresses. It panics if the name is attached already. If two ports have the
// same address, both get its packets.
func (f *Fabric) Attach(name string, mtu int, addrs ...netip.Addr) *Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports[name] != nil {
		panic(fmt.Sprintf("memfabric: port %q attached twice", name))
	}
	p := f.newPort(name, mtu)
	f.ports[name] = p
	for _, a := range addrs {
		p.addAddr(a)
	}
	return p
}

// AttachLanes is Attach for n transports of one underlay, which the first one represents. The
// UDP source port of a unicast datagram selects the transport that receives it. The first one
// receives all multicast.
func (f *Fabric) AttachLanes(n int, name string, mtu int, addrs ...netip.Addr) []*Port {
	p := f.Attach(name, mtu, addrs...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n - 1 {
		lane := f.newPort(name, mtu)
		lane.main = p
		p.lanes = append(p.lanes, lane)
	}
	return slices.Clone(p.lanes)
}

// SetConditions replaces the impairments; datagrams in flight keep theirs.
func (f *Fabric) SetConditions(c Conditions) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cond = c
}

// Partition cuts both directions between the ports named a and b.
func (f *Fabric) Partition(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts[pair{a, b}], f.cuts[pair{b, a}] = true, true
}

// Unpartition undoes Partition.
func (f *Fabric) Unpartition(a, b string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.cuts, pair{a, b})
	delete(f.cuts, pair{b, a})
}

// Close closes every port.
func (f *Fabric) Close() error {
	for _, p := range f.snapshot() {
		p.Close()
	}
	return nil
}

func (f *Fabric) snapshot() []*Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	ports := make([]*Port, 0, len(f.ports))
	for _, p := range f.ports {
		ports = append(ports, p)
	}
	return ports
}

// forward carries one checked packet of p to all its receivers.
func (f *Fabric) forward(p *Port, pkt *transport.Packet, now time.Time) {
	var reached bool
	for _, to := range f.routes[pkt.Dst] {
		if to != p.main {
			reached = true
			f.cross(p, to, pkt, now)
		}
	}
	if !reached {
		f.drop(p, p.state.Name, "", pkt, DropUnreachable)
	}
}

// cross carries a packet in one direction, with its impairments.
func (f *Fabric) cross(from, to *Port, pkt *transport.Packet, now time.Time) {
	dir := pair{from.name, to.name}
	if f.cuts[dir] {
		f.drop(to, from.name, to.name, pkt, DropPartition)
		return
	}
	to = to.lane(pkt)
	d := f.diceOf(dir)
	if d.hit(f.cond.Loss) {
		f.drop(to, from.name, to.name, pkt, DropLoss)
		return
	}
	to.accept(from, pkt, now.Add(f.cond.lateness(d)))
	if d.hit(f.cond.Duplicate) {
		to.accept(from, pkt, now.Add(f.cond.lateness(d)))
	}
}

func (f *Fabric) diceOf(dir pair) *dice {
	d := f.dice[dir]
	if d == nil {
		h := fnv.New64a()
		h.Write([]byte(dir.from + "\x00" + dir.to))
		d = &dice{rand.New(rand.NewPCG(f.seed, h.Sum64()))}
		f.dice[dir] = d
	}
	return d
}

// route and unroute update the table of addresses and groups.
func (f *Fabric) route(a netip.Addr, p *Port) { f.routes[a] = append(f.routes[a], p) }

func (f *Fabric) unroute(a netip.Addr, p *Port) {
	f.routes[a] = slices.DeleteFunc(f.routes[a], func(q *Port) bool { return q == p })
	if len(f.routes[a]) == 0 {
		delete(f.routes, a)
	}
}
