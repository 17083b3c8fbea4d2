package soft

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// fastPath is the fast path of a QP. Its gate is open while the QP is in RTS, the port is up, the device is
// not paused, and no one holds it; updateGate has all conditions. A verb shuts the gate before it acts. A change of the port
// or of the P_Key table, and a pause, shut it before they are reported.
type fastPath struct {
	qp   *QP
	gid  int        // index of the QP's address
	addr netip.Addr // that it had
	gate transport.Gate

	holds int // guarded by the locks of the QP

	mu     sync.Mutex // held by methods that change peers, and by Counters
	peers  map[[6]byte]transport.GatePeer
	closed bool
}

var (
	_ hca.FastPathCreator = (*QP)(nil)
	_ hca.FastPath        = (*fastPath)(nil)
)

// defaultHops is the hop limit of packets on the fast path for which an address handle does not choose one. The sockets use the
// system's default then.
const defaultHops = 64

// CreateFastPath implements [hca.FastPathCreator].
func (q *QP) CreateFastPath(spec hca.FastPathSpec) (hca.FastPath, error) {
	f, err := q.createFastPath(spec)
	if err != nil {
		return nil, verb("create_fast_path", q.num.String(), err)
	}
	return f, nil
}

func (q *QP) createFastPath(spec hca.FastPathSpec) (*fastPath, error) {
	d := q.dev
	wire, able := d.lanes[0].wire.(transport.FastPaths)
	switch {
	case q.usable() != nil:
		return nil, q.usable()
	case !able || len(q.queues) != len(d.lanes): // flows would have other lanes than in the device
		return nil, errors.ErrUnsupported
	case q.fast.Load() != nil:
		return nil, hca.ErrBusy
	}
	gids := d.env().GIDs
	if spec.SGIDIndex < 0 || spec.SGIDIndex >= len(gids) || !gids[spec.SGIDIndex].Addr.IsValid() {
		return nil, hca.ErrInvalid
	}
	f := &fastPath{qp: q, gid: spec.SGIDIndex, addr: gids[spec.SGIDIndex].Addr, peers: map[[6]byte]transport.GatePeer{}}
	g := transport.GateSpec{Netdev: spec.Netdev, MAC: spec.MAC, Addr: f.addr, Num: q.num}
	for _, l := range d.lanes {
		g.Ports = append(g.Ports, l.wire.SrcPort())
	}
	var err error
	if f.gate, err = wire.AddGate(g); err != nil {
		return nil, err
	}
	if !q.fast.CompareAndSwap(nil, f) {
		return nil, errors.Join(hca.ErrBusy, f.gate.Close())
	}
	d.fastPaths.Add(1)
	q.lock()
	q.psns.Move(f.gate.PSN())
	q.unlock()
	for _, l := range d.lanes {
		l.wire.(transport.FastPaths).WhenEmpty(l.emptied)
	}
	if q.closed.Load() { // perhaps before it had a fast path
		return nil, errors.Join(hca.ErrClosed, f.Close())
	}
	q.updateGate()
	return f, nil
}

// packets are packets of a flow that the fast path may have left to a queue. The kernel cuts a large frame, or leaves that
// to the device, so each segment counts.
type packets struct{ flow, n uint32 }

// packetsOf returns the packets of a send. sendMu is held.
func (f *fastPath) packetsOf(q *queue, wr *hca.SendWR) packets {
	switch {
	case len(wr.SGList) == 0:
		return packets{}
	case wr.LSO.MSS > 0:
		size := 0
		for i := range wr.SGList {
			size += int(wr.SGList[i].Length)
		}
		return packets{f.gate.Flow(wr.LSO.Header), uint32(max(1, (size+wr.LSO.MSS-1)/wr.LSO.MSS))}
	}
	msg, _ := q.lane.env.Load().Memory.Bytes(f.qp.pd.id, &wr.SGList[0], false)
	return packets{f.gate.Flow(msg), 1}
}

// sent reports the sends that have left a queue. sendMu is held.
func (f *fastPath) sent(q *queue) {
	n := max(0, len(q.posted)-q.core.Unsent())
	for _, p := range q.posted[:n] {
		f.gate.Sent(p.flow, p.n)
	}
	q.posted = slices.Delete(q.posted, 0, n)
}

// passage has the messages whose completions are in a CQ, or with its owner, in order.
type passage struct {
	list   []arrival
	polled int // those whose completions the owner has polled
}

// arrival is a message that the fast path of its QP has left to a queue.
type arrival struct {
	flow  uint32
	queue *queue
}

// maxPassage bounds the messages of a passage. The fast path takes those beyond it to be lost.
const maxPassage = 1 << 12

// arrive adds the messages that have arrived at a queue.
func (p *passage) arrive(q *queue) {
	for _, flow := range q.arrived[:min(len(q.arrived), maxPassage-len(p.list))] {
		p.list = append(p.list, arrival{flow, q})
	}
}

// handled reports the messages that the owner has handled: it had polled their completions.
func (p *passage) handled() {
	for i, n := 0, 0; i < p.polled; i += n {
		a := p.list[i]
		for n = 1; i+n < p.polled && p.list[i+n] == a; n++ { // a run of one flow
		}
		if f := a.queue.qp.fast.Load(); f != nil {
			f.gate.Received(a.queue.lane.index, a.flow, uint32(n))
		}
	}
	p.list, p.polled = slices.Delete(p.list, 0, p.polled), 0
}

// emptied notes that the lane has no datagram.
func (l *lane) emptied() {
	now := time.Now()
	for _, q := range l.dev.routes.Load().qps {
		if f := q.fast.Load(); f != nil && q.queues[l.index].recvCQ.idle() {
			f.gate.ReceivedAll(l.index, now)
		}
	}
}

// shut shuts the gate of the fast path, if there is one. The QP is locked.
func (q *QP) shut() {
	if f := q.fast.Load(); f != nil {
		f.gate.Shut()
	}
}

// updateGate opens or shuts the gate of the fast path, if there is one. The QP is not locked.
func (q *QP) updateGate() {
	f := q.fast.Load()
	if f == nil {
		return
	}
	q.lock()
	defer q.unlock()
	q.settleLocked()
	attr, env := q.queues[0].core.Query(), q.dev.env()
	pkey := env.PKey(attr.PKeyIndex)
	// The programs compare P_Keys, and a limited member does not accept those of others.
	wanted := attr.State == hca.QPRTS && pkey&hca.PKeyMembership != 0 && env.Up && env.Own(f.addr) && f.holds == 0 &&
		!q.dev.paused.Load() && q.usable() == nil && q.fast.Load() == f
	if wanted {
		f.gate.Open(attr.QKey, pkey)
	}
	if !wanted || q.dev.lost.Load() { // perhaps meanwhile
		f.gate.Shut()
	}
}

// updateGates opens or shuts the gates of all fast paths after a change of the port or the device.
func (d *Device) updateGates() {
	for _, q := range d.routes.Load().qps {
		q.updateGate()
	}
}

// shut shuts the gates of all fast paths for good: the device is lost. Any locks may be held.
func (d *Device) shut() {
	for _, q := range d.routes.Load().qps {
		if f := q.fast.Load(); f != nil {
			f.gate.Shut()
		}
	}
}

// peer returns the peer at a destination that can be on the fast path.
func (f *fastPath) peer(mac [6]byte, to hca.UDDest) (transport.GatePeer, bool) {
	ah, ok := to.AH.(*AH)
	if !ok || ah.pd != f.qp.pd || ah.spec.DGID.Addr().IsMulticast() {
		return transport.GatePeer{}, false
	}
	p := transport.GatePeer{
		MAC: mac, Addr: ah.spec.DGID.Addr(), Num: to.QPN, QKey: to.QKey,
		TrafficClass: ah.spec.Traffic, HopLimit: ah.spec.HopLimit,
	}
	if p.HopLimit == 0 {
		p.HopLimit = defaultHops
	}
	env := f.qp.dev.env()
	return p, p.QKey&hca.QKeyControlled == 0 && ah.spec.SGIDIndex == f.gid && !env.Own(p.Addr) && p.Addr.Is4() == f.addr.Is4()
}

// AddPeer implements [hca.FastPath].
func (f *fastPath) AddPeer(mac [6]byte, to hca.UDDest) error {
	return verb("add_fast_peer", f.qp.num.String(), f.addPeer(mac, to))
}

func (f *fastPath) addPeer(mac [6]byte, to hca.UDDest) error {
	p, ok := f.peer(mac, to)
	if !ok {
		return hca.ErrInvalid
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return hca.ErrClosed
	}
	if err := f.gate.AddPeer(p); err != nil {
		return err
	}
	f.peers[mac] = p
	return nil
}

// Renew implements [hca.FastPath]. The gate knows no handles.
func (f *fastPath) Renew(mac [6]byte, to hca.UDDest) bool {
	p, ok := f.peer(mac, to)
	f.mu.Lock()
	defer f.mu.Unlock()
	return ok && f.peers[mac] == p
}

// RemovePeer implements [hca.FastPath].
func (f *fastPath) RemovePeer(mac [6]byte) (last hca.FastPathCounts, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.peers, mac)
	last, err = f.gate.RemovePeer(mac)
	return last, verb("remove_fast_peer", f.qp.num.String(), err)
}

// PeerCounts implements [hca.FastPath].
func (f *fastPath) PeerCounts(mac [6]byte) (hca.FastPathCounts, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.PeerCounts(mac)
}

// Hold implements [hca.FastPath].
func (f *fastPath) Hold() {
	f.qp.lock()
	defer f.qp.unlock()
	f.holds++
	f.qp.shut()
}

// Release implements [hca.FastPath].
func (f *fastPath) Release() {
	f.qp.lock()
	f.holds--
	f.qp.unlock()
	f.qp.updateGate()
}

// Refused implements [hca.FastPath].
func (f *fastPath) Refused() error { return f.gate.Refused() }

// Posted implements [hca.FastPath]. What was posted is on the wire, unless the transport is full.
func (f *fastPath) Posted(i int) {
	q := f.qp.queues[i]
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.core.Unsent() == 0 {
		f.gate.SentAll(q.lane.index, time.Now())
	}
}

// Counters implements [hca.FastPath].
func (f *fastPath) Counters() []hca.Counter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.Counters()
}

// Close implements [hca.FastPath].
func (f *fastPath) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.qp.dev.fastPaths.Add(-1)
	f.qp.lock()
	f.qp.shut()
	f.qp.fast.CompareAndSwap(f, nil)
	f.qp.psns.Move(new(uint32))
	for _, q := range f.qp.queues {
		q.posted = q.posted[:0]
	}
	f.qp.unlock()
	return verb("destroy_fast_path", f.qp.num.String(), f.gate.Close())
}
