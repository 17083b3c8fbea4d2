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

	mu       sync.Mutex // guards the fields below, and all netdevs and ports
	attached int        // ports ever attached
	netdevs  map[string]*netdev
	routes   map[netip.Addr][]*netdev // netdevs by address and by joined group
	cuts     map[pair]bool
	cond     Conditions
	dice     map[pair]*dice
	capture  func(Capture)
	free     []*datagram
	seq      uint64
}

// pair is a direction between two netdevs.
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
		seed:    seed,
		queue:   DefaultQueue,
		netdevs: make(map[string]*netdev),
		routes:  make(map[netip.Addr][]*netdev),
		cuts:    make(map[pair]bool),
		dice:    make(map[pair]*dice),
	}
	for _, o := range opts {
		o(f)
	}
	return f
}

// Attach attaches a netdev that is up, with this name, MTU (bytes of an IP packet) and addresses,
// and returns its only port. It panics if the name is attached already. If two netdevs have the
// same address, both get its packets.
func (f *Fabric) Attach(name string, mtu int, addrs ...netip.Addr) *Port {
	return f.AttachLanes(1, name, mtu, addrs...)[0]
}

// AttachLanes is Attach for a netdev with n ports. The UDP source port of a unicast datagram
// selects the port that receives it. The first one receives all multicast.
func (f *Fabric) AttachLanes(n int, name string, mtu int, addrs ...netip.Addr) []*Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.netdevs[name] != nil {
		panic(fmt.Sprintf("memfabric: netdev %q attached twice", name))
	}
	d := f.newNetdev(name, mtu)
	f.netdevs[name] = d
	for range n {
		d.addPort()
	}
	for _, a := range addrs {
		d.addAddr(a)
	}
	d.monitor.Set(d.state)
	return slices.Clone(d.ports)
}

// SetConditions replaces the impairments; datagrams in flight keep theirs.
func (f *Fabric) SetConditions(c Conditions) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cond = c
}

// Partition cuts both directions between the netdevs named a and b.
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
	f.mu.Lock()
	var ports []*Port
	for _, d := range f.netdevs {
		ports = append(ports, d.ports...)
	}
	f.mu.Unlock()
	for _, p := range ports {
		p.Close()
	}
	return nil
}

// forward carries one checked packet of p to all its receivers.
func (f *Fabric) forward(p *Port, pkt *transport.Packet, now time.Time) {
	var reached bool
	for _, to := range f.routes[pkt.Dst] {
		if to != p.netdev {
			reached = true
			f.cross(p.netdev.name, to.lane(pkt), pkt, now)
		}
	}
	if !reached {
		f.drop(p, p.netdev.name, "", pkt, DropUnreachable)
	}
}

// cross carries a packet from a netdev to a port, with the impairments of that direction.
func (f *Fabric) cross(from string, to *Port, pkt *transport.Packet, now time.Time) {
	dir := pair{from, to.netdev.name}
	if f.cuts[dir] {
		f.drop(to, dir.from, dir.to, pkt, DropPartition)
		return
	}
	d := f.diceOf(dir)
	if d.hit(f.cond.Loss) {
		f.drop(to, dir.from, dir.to, pkt, DropLoss)
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
func (f *Fabric) route(a netip.Addr, d *netdev) { f.routes[a] = append(f.routes[a], d) }

func (f *Fabric) unroute(a netip.Addr, d *netdev) {
	f.routes[a] = slices.DeleteFunc(f.routes[a], func(x *netdev) bool { return x == d })
	if len(f.routes[a]) == 0 {
		delete(f.routes, a)
	}
}
