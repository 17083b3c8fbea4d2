package soft

import (
	"errors"
	"net/netip"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// PostRecv implements [hca.QP].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	if err := q.usable(); err != nil {
		return 0, err
	}
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

// receiver holds the state that the receive loop owns.
type receiver struct {
	dev     *Device
	to      delivery
	known   knownPeers
	ids     idHabits
	icrc    roce.Verifier
	in      softqp.Inbound
	payload [1][]byte
	pkts    [hca.Batch]transport.Packet
}

// recvLoop receives until the transport is closed.
func (d *Device) recvLoop() {
	r := &receiver{dev: d, to: delivery{dev: d, patience: time.NewTimer(backPressure)}}
	defer r.to.patience.Stop()
	for {
		n, err := d.wire.Recv(r.pkts[:])
		if err != nil {
			if !errors.Is(err, hca.ErrClosed) {
				d.lose()
			}
			return
		}
		r.batch(r.pkts[:n])
	}
}

func (r *receiver) batch(pkts []transport.Packet) {
	r.known.update(&r.dev.cfg)
	for i := range pkts {
		r.one(&pkts[i])
	}
	r.to.release()
	r.dev.settle()
}

// one applies all checks before the QPs to a datagram, and dispatches it.
func (r *receiver) one(p *transport.Packet) {
	c := &r.dev.counts
	c.add(rxPackets, 1)
	c.add(rxBytes, len(p.Data))
	path := roce.Path{
		Src: p.Src.WithZone(""), Dst: p.Dst.WithZone(""), SrcPort: p.SrcPort,
	}
	if p.IDKnown {
		path.ID = p.ID
	}
	if env := r.dev.env.Load(); env.Own(path.Src) && !r.dev.fromSharer(env, path.SrcPort) {
		return
	}
	if !r.known.has(path.Src) {
		c.add(dropUnknownPeer, 1)
		return
	}
	u, err := roce.ParseUDSend(p.Data)
	if err != nil {
		c.add(parseDrop(err), 1)
		return
	}
	// A message that no port may send must not consume a receive: if the receive is
	// too short, its QP fails, and no peer may cause that.
	if len(u.Payload) > int(hca.MaxMTU) {
		c.add(dropTooLong, 1)
		return
	}
	if r.verify(&path, p) {
		r.deliver(&path, p, &u)
	}
}

// verify checks the ICRC.
func (r *receiver) verify(path *roce.Path, p *transport.Packet) bool {
	match, id := r.icrc.Verify(path, p.IDKnown, p.Data)
	if match == roce.MatchSolved && r.ids.unusual(path.Src) {
		r.dev.counts.add(dropICRC, 1)
		return false
	}
	switch match {
	case roce.MatchLowID:
		r.ids.low(path.Src)
		r.dev.counts.add(icrcIDLow, 1)
	case roce.MatchSolved:
		r.dev.counts.add(icrcIDSolved, 1)
	case roce.NoMatch:
		r.dev.counts.add(dropICRC, 1)
		if path.Src.Is4() && !r.ids.intact(path.Src) {
			r.dev.suspectNAT(path, p.Data)
		}
	case roce.MatchKnownID, roce.NumMatch:
	}
	path.ID = id
	return match != roce.NoMatch
}

func (r *receiver) deliver(path *roce.Path, p *transport.Packet, u *roce.UDSend) {
	r.payload[0] = u.Payload
	r.in = softqp.Inbound{
		Path: *path, TOS: p.TOS, TTL: p.TTL, UDPLen: len(p.Data),
		DestQPN: u.DestQPN, SrcQPN: u.SrcQPN, PKey: u.PKey, QKey: u.QKey,
		Payload: r.payload[:], Len: len(u.Payload),
	}
	r.to.dispatch(&r.in)
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
