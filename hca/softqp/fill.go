package softqp

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// loopTTL is the hop limit of a looped-back message whose AH selects the system's
// default.
const loopTTL = 64

// Fill builds a batch from the requests at the head of the queue. Replicated multicast
// is sent to peers, a slice that must not change; a request whose copies need several
// batches keeps the slice that it started with. If the batch has no datagram and
// TailNone, there is nothing to send in this state. The caller must call Finish after
// every Fill, before any other method of the send side. Send side.
func (q *QP) Fill(env *Env, peers []netip.Addr, b *Batch) {
	b.Tail, b.Reason, b.Skipped, b.skipped, b.n, b.peers = TailNone, Passed, 0, 0, 0, nil
	if q.send.state.SendQueue() != hca.QueueRuns {
		return
	}
	fan := q.send.fan
	for i := 0; i < q.send.queue.len() && !b.full() && b.Tail == TailNone; i++ {
		if fan.next == 0 {
			fan.peers = peers
		}
		q.fillOne(env, fan, q.send.queue.at(i), b)
		fan.next = 0
	}
}

// fillOne adds the datagrams of one request. Copies start at fan.
func (q *QP) fillOne(env *Env, fan fan, r *sendReq, b *Batch) {
	if !q.prepare(env, r, b) {
		return
	}
	dst := b.msg.dst
	switch {
	case !dst.IsMulticast() && env.Own(dst):
		b.loop(env)
	case !dst.IsMulticast():
		b.add(env, dst, q.send.psn, true)
	case env.Replicate:
		q.replicate(env, fan, b)
	default:
		b.add(env, dst, q.send.psn, false)
		b.loop(env)
	}
}

// replicate adds a copy for every peer except this port itself, then the loopback.
// Copies that do not fit are left for the next batch.
func (q *QP) replicate(env *Env, fan fan, b *Batch) {
	b.peers = fan.peers
	for i := fan.next; i < len(fan.peers); i++ {
		p := fan.peers[i]
		switch {
		case b.full():
			return
		case env.Own(p):
		case p.Is4() != b.msg.src.Is4():
			b.skipped++
		default:
			b.add(env, p, q.send.psn, false)
			d := &b.datagrams[b.n-1]
			d.next, d.skipped, b.skipped = i+1, b.skipped, 0
			d.TTL = 0 // the system's default: the hop limit of a group does not apply to the unicast path to a peer
		}
	}
	b.loop(env)
}

// prepare resolves the memory and the addresses of a request. It returns false if the
// request is not sent and ends the batch.
func (q *QP) prepare(env *Env, r *sendReq, b *Batch) bool {
	m := &b.msg
	if !m.payload.find(env.Memory, q.cfg.PD, r.sge[:r.n], false) {
		b.fail(FailSendAccess, hca.WCLocProtErr)
		return false
	}
	m.dst = r.ah.DGID.Addr()
	gid, ok := env.source(r.ah.SGIDIndex, m.dst)
	switch {
	case !env.Up:
		b.drop(DropPortDown)
	case !ok:
		b.drop(DropNoSource)
	case m.payload.size > gid.MaxPayload:
		b.fail(FailSendLength, hca.WCLocLenErr)
	default:
		m.src = gid.Addr
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
		Pad:       uint8(roce.PadFor(m.payload.size)),
		PKey:      env.pkey(q.keys.pkeyIndex),
		DestQPN:   r.qpn,
	}
	m.deth = roce.DETH{QKey: r.qkey, SrcQPN: q.cfg.Num}
	if r.qkey&hca.QKeyControlled != 0 {
		m.deth.QKey = q.keys.qkey
	}
}

// loop ends the batch with the loopback of the current message to this port.
func (b *Batch) loop(env *Env) {
	m := &b.msg
	b.Tail = TailLoop
	b.Loop = Inbound{
		Path: roce.Path{Src: m.src, Dst: m.dst, SrcPort: env.SrcPort},
		TOS:  m.traffic, TTL: m.hops,
		UDPLen:  roce.HeaderLen + m.payload.size + int(m.bth.Pad) + roce.ICRCLen,
		DestQPN: m.bth.DestQPN, SrcQPN: m.deth.SrcQPN,
		PKey: m.bth.PKey, QKey: m.deth.QKey,
		Payload: m.payload.list(), Len: m.payload.size,
	}
	if b.Loop.TTL == 0 {
		b.Loop.TTL = loopTTL
	}
}
