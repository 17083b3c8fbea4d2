package softqp

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// loopTTL is the hop limit of a looped-back message whose AH selects the system's
// default.
const loopTTL = 64

// Fill builds a batch from the requests at the head of the queue. Packets in a row that
// have the same destination and fit the limits form a train. Replicated multicast is sent
// to peers, a slice that must not change; a request whose copies need several batches keeps
// the slice that it started with. If the batch has no train and TailNone, there is nothing
// to send in this state. The caller must call Finish after every Fill, before any other
// method of the send side. Send side.
func (q *QP) Fill(env *Env, peers []netip.Addr, limits Limits, b *Batch) {
	b.clear(limits)
	if q.send.state.SendQueue() == hca.QueueRuns {
		q.fill(env, peers, b)
		if b.spare > 0 {
			q.cfg.PSNs.giveBack(b.psn, b.spare)
		}
	}
}

func (q *QP) fill(env *Env, peers []netip.Addr, b *Batch) {
	at := q.send.at
	for i := 0; i < q.send.queue.len() && !b.full() && b.Tail == TailNone; i++ {
		r := q.send.queue.at(i)
		b.more = i+1 < q.send.queue.len()
		if at.seg == 0 && at.next == 0 {
			at.peers = peers
		}
		if q.prepare(env, r, b) && !q.fillOne(env, at, r, b) {
			return
		}
		at = progress{}
	}
}

// fillOne adds the datagrams of one prepared request from its progress on. It returns false if the
// batch should end before the next of them.
func (q *QP) fillOne(env *Env, at progress, r *sendReq, b *Batch) bool {
	m, n := &b.msg, r.messages()
	unicast := !m.dst.IsMulticast()
	local := unicast && env.Own(m.dst)
	for ; at.seg < n && !b.full() && b.Tail == TailNone; at.seg, at.next = at.seg+1, 0 {
		if r.large {
			m.cut(&r.plan, at.seg)
		}
		switch {
		case local:
			b.loopBack(env, after(at.seg, n))
		case unicast:
			if b.shouldEnd(n-at.seg, at.seg == 0) {
				return false
			}
			b.add(env, m.dst, m.hops, b.number(q.cfg.PSNs, n-at.seg), after(at.seg, n))
		case env.Replicate:
			if q.replicate(env, at, b) {
				b.loopBack(env, after(at.seg, n))
			}
		default:
			b.add(env, m.dst, m.hops, b.number(q.cfg.PSNs, 1), datagram{})
			b.loopBack(env, after(at.seg, n))
		}
	}
	return true
}

// replicate adds a copy of the current message for every peer except this port itself. It
// returns false if not all copies fit; the next batch continues with the others.
func (q *QP) replicate(env *Env, at progress, b *Batch) bool {
	b.peers = at.peers
	for i := at.next; i < len(at.peers); i++ {
		p := at.peers[i]
		switch {
		case b.full():
			return false
		case env.Own(p):
		case p.Is4() != b.msg.src.Is4():
			b.skipped++
		default:
			// TTL 0 is the system's default: the hop limit of a group does not apply to the
			// unicast path to a peer.
			b.add(env, p, 0, b.number(q.cfg.PSNs, len(at.peers)-i), datagram{resumes: true, seg: at.seg, next: i + 1, skipped: b.skipped})
			b.skipped = 0
		}
	}
	return true
}

// prepare resolves the memory and the addresses of a request. It returns false if the
// request is not sent and ends the batch.
func (q *QP) prepare(env *Env, r *sendReq, b *Batch) bool {
	m := &b.msg
	if !m.all.find(env.Memory, q.cfg.PD, r.sge[:r.n], false) {
		b.fail(FailSendAccess, hca.WCLocProtErr)
		return false
	}
	m.dst = r.ah.DGID.Addr()
	gid, ok := env.source(r.ah.SGIDIndex, m.dst)
	longest := m.all.size
	if r.large {
		_, n := r.plan.Payload(0)
		longest = r.plan.HeaderLen() + n
	}
	switch {
	case !env.Up:
		b.drop(DropPortDown)
	case !ok:
		b.drop(DropNoSource)
	case longest > gid.MaxPayload:
		b.fail(FailSendLength, hca.WCLocLenErr)
	default:
		m.src = gid.Addr
		m.plan, m.head, m.payload = nil, 0, m.all
		if r.flags&hca.SendIPCsum != 0 && !r.large {
			m.complete()
		}
		q.address(env, r, m)
	}
	return b.Tail == TailNone
}

// address fills in the transport headers.
func (q *QP) address(env *Env, r *sendReq, m *message) {
	m.traffic, m.hops = r.ah.Traffic, r.ah.HopLimit
	m.bth = roce.BTH{
		Opcode:    roce.OpcodeUDSendOnly,
		Solicited: r.flags&hca.SendSolicited != 0,
		Migrated:  true,
		PKey:      env.PKey(q.keys.pkeyIndex),
		DestQPN:   r.qpn,
	}
	m.deth = roce.DETH{QKey: r.qkey, SrcQPN: q.cfg.Num}
	if r.qkey&hca.QKeyControlled != 0 {
		m.deth.QKey = q.keys.qkey
	}
}

// loopBack ends the batch with the loopback of the current message to this port. The request
// proceeds by d once the message is delivered.
func (b *Batch) loopBack(env *Env, d datagram) {
	m := &b.msg
	b.Tail, b.after = TailLoop, d
	head := b.headers[:m.head]
	m.putHeaders(head)
	b.loop[0] = head
	n := 1 + copy(b.loop[1:], m.payload.list())
	size := m.head + m.payload.size
	b.Loop = Inbound{
		Path: roce.Path{Src: m.src, Dst: m.dst, SrcPort: env.SrcPort},
		TOS:  m.traffic, TTL: m.hops,
		UDPLen:  roce.HeaderLen + size + roce.PadFor(size) + roce.ICRCLen,
		DestQPN: m.bth.DestQPN, SrcQPN: m.deth.SrcQPN,
		PKey: m.bth.PKey, QKey: m.deth.QKey,
		Payload: b.loop[:n], Len: size,
	}
	if b.Loop.TTL == 0 {
		b.Loop.TTL = loopTTL
	}
}
