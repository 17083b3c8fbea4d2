package soft

import (
	"errors"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// PostRecv implements [hca.QP]: it posts to the first queue.
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) { return q.queues[0].PostRecv(wrs) }

// PostRecv implements [hca.Queue].
func (q *queue) PostRecv(wrs []hca.RecvWR) (int, error) {
	if err := q.qp.usable(); err != nil {
		return 0, err
	}
	n, err := q.postRecv(wrs)
	if err == nil && q.qp.dev.awaiting.Load() {
		q.qp.dev.arrived(q.qp.num)
	}
	return n, err
}

func (q *queue) postRecv(wrs []hca.RecvWR) (int, error) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.starving = false
	if q.awaited {
		defer notify(q.refilled)
	}
	for i := range wrs {
		if err := q.core.PostRecv(&wrs[i]); err != nil {
			q.recvCQ.push(q.core.RecvDone())
			return i, err
		}
	}
	q.recvCQ.push(q.core.RecvDone())
	return len(wrs), nil
}

// receiver holds the state of the goroutine that receives; see turn.
type receiver struct {
	lane    *lane
	to      delivery
	next, n int  // the datagrams pkts[next:n] wait
	held    bool // the first of them was checked, and waits for a receive
	known   knownPeers
	ids     idHabits
	traces  natTraces
	icrc    roce.Verifier
	send    roce.UDSend    // the last datagram
	in      softqp.Inbound // its message
	payload [1][]byte
	pkts    [hca.Batch]transport.Packet
}

// batch delivers the datagrams of one call of the transport. It returns false if some are
// left because the QPs of c, whose owner is the receiving goroutine, have no receives for them.
func (r *receiver) batch(c *CQ) (more bool, err error) {
	if r.next == r.n {
		r.next = 0
		if r.n, err = r.lane.recv(c, r.pkts[:]); err != nil {
			r.n = 0
			return false, err
		}
	}
	r.known.update(&r.lane.dev.cfg)
	r.to.reader, r.to.stopped = c, false
	for !r.to.stopped && r.next < r.n {
		p := &r.pkts[r.next]
		if r.held || r.check(p) {
			r.to.dispatch(&r.in)
		} else if r.lane.dev.fastPaths.Load() > 0 {
			r.noteDropped(p)
		}
		if r.held = r.to.stopped; !r.held {
			r.to.run.packets++
			r.to.run.bytes += len(p.Data)
			r.next++
		}
	}
	r.to.release()
	r.lane.dev.settle()
	return !r.to.stopped, nil
}

// check applies to a datagram all checks that precede the checks of the QPs, and stores its message
// in r.in. It returns false if it has dropped the datagram.
func (r *receiver) check(p *transport.Packet) bool {
	c, u, path := &r.lane.counts, &r.send, &r.in.Path
	path.Src, path.Dst, path.SrcPort, path.ID = p.Src, p.Dst, p.SrcPort, p.ID
	// Messages of this port to itself never reach the wire, so such a datagram is forged.
	if r.lane.env.Load().Own(path.Src) {
		c.add(dropOwnSource, 1)
		return false
	}
	if !r.known.has(path.Src) {
		c.add(dropUnknownPeer, 1)
		return false
	}
	if err := u.Parse(p.Data); err != nil {
		c.add(parseDrop(err), 1)
		return false
	}
	// A message that no port may send must not consume a receive: if the receive is
	// too short, its QP fails, and no peer may cause that.
	if len(u.Payload) > int(hca.MaxMTU) {
		c.add(dropTooLong, 1)
		return false
	}
	if !r.verify(path, p) {
		return false
	}
	// Fields are set in place: a copy of the message right after writing it would wait for
	// the writes.
	r.payload[0] = u.Payload
	r.in.TOS, r.in.TTL, r.in.UDPLen = p.TOS, p.TTL, len(p.Data)
	r.in.DestQPN, r.in.SrcQPN, r.in.PKey, r.in.QKey = u.DestQPN, u.SrcQPN, u.PKey, u.QKey
	r.in.Payload, r.in.Len = r.payload[:], len(u.Payload)
	return true
}

// noteDropped reports a datagram that was dropped, and that a fast path may have left to the daemon: otherwise forged ones would
// hold flows back.
func (r *receiver) noteDropped(p *transport.Packet) {
	var u roce.UDSend
	if u.Parse(p.Data) != nil {
		return
	}
	if q := r.lane.dev.routes.Load().qps[u.DestQPN]; q != nil {
		if f := q.fast.Load(); f != nil {
			f.gate.Received(r.lane.index, f.gate.Flow(u.Payload), 1)
		}
	}
}

// verify checks the ICRC.
func (r *receiver) verify(path *roce.Path, p *transport.Packet) bool {
	match := r.icrc.Verify(path, p.IDKnown, p.Data)
	if match == roce.MatchSolved && r.ids.unusual(path.Src) {
		r.lane.counts.add(dropICRC, 1)
		return false
	}
	switch match {
	case roce.MatchLowID:
		r.ids.low(path.Src)
		r.to.run.lowIDs++
	case roce.MatchSolved:
		r.lane.counts.add(icrcIDSolved, 1)
	case roce.NoMatch:
		r.lane.counts.add(dropICRC, 1)
		if path.Src.Is4() && !r.ids.intact(path.Src) {
			r.suspectNAT(path, p.Data)
		}
	case roce.MatchKnownID, roce.NumMatch:
	}
	return match != roce.NoMatch
}

// parseDrop returns the counter for a parse error.
func parseDrop(err error) counter {
	switch {
	case errors.Is(err, roce.ErrShort):
		return dropShort
	case errors.Is(err, roce.ErrVersion):
		return dropVersion
	case errors.Is(err, roce.ErrImmediate):
		return dropImmediate
	case errors.Is(err, roce.ErrPad):
		return dropPad
	default:
		return dropOpcode
	}
}

// knownPeers is the list of peers as a set. The zero value contains every address.
type knownPeers struct {
	list []netip.Addr // from which the set was built
	set  map[netip.Addr]struct{}
}

// update builds the set again if the list has changed. A list does not change once it is
// published, so its address identifies it.
func (k *knownPeers) update(cfg *Config) {
	if !cfg.KnownPeersOnly {
		return
	}
	list := cfg.Peers()
	if k.set != nil && len(k.list) == len(list) && (len(list) == 0 || &k.list[0] == &list[0]) {
		return
	}
	k.list, k.set = list, make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		k.set[a] = struct{}{}
	}
}

func (k *knownPeers) has(a netip.Addr) bool {
	if k.set == nil {
		return true
	}
	_, ok := k.set[a]
	return ok
}
