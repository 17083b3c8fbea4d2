package softqp

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/segment"
)

// maxPacket is the maximum length of a packet, from the BTH to the ICRC.
const maxPacket = roce.HeaderLen + int(hca.MaxMTU) + roce.ICRCLen

// Limits bound a train. With fewer than two datagrams there are no trains.
type Limits struct {
	MaxSegs  int // datagrams
	MaxBytes int // of all of them together
}

// Train is one or more RoCEv2 packets to one QP or group, each complete with its ICRC. Each has
// SegSize bytes, except that the last one may be shorter. The ICRC of packet k, counted from 0,
// is for the IPv4 identification k.
type Train struct {
	Src, Dst netip.Addr
	TOS, TTL uint8
	Segs     int
	SegSize  int
	// Data is all packets, one after the other, each from the BTH to the ICRC. It is memory of the batch.
	Data []byte
	qpn  hca.QPN // of the destination: one train must not hold datagrams for devices that share an address
	end  int     // number of the batch's datagrams up to the end of the train
}

// datagram describes how the request of a packet proceeds once the packet is sent.
type datagram struct {
	ends      bool // it completes the request
	resumes   bool // the request continues at seg and next, which are those of progress
	seg, next int
	skipped   int // of a copy: peers skipped since the previous copy
	psn       uint32
}

// after describes the datagram of message seg of the n messages of a request.
func after(seg, n int) datagram {
	return datagram{ends: seg+1 == n, resumes: seg+1 < n, seg: seg + 1}
}

// Tail says how the last request of a batch ends, if not with a datagram.
type Tail uint8

// Tails.
const (
	TailNone Tail = iota
	TailDrop      // it completes but is not sent; Batch.Reason says why
	TailFail      // it completes in error; Batch.Reason says why
	TailLoop      // the shell delivers Batch.Loop to the QPs of this port; the request completes with its last message
)

// Batch holds the packets that Fill builds from the requests at the head of a send queue. It
// belongs to the send side of one QP, which reuses it.
type Batch struct {
	Tail   Tail
	Reason Reason  // with TailDrop and TailFail
	Loop   Inbound // with TailLoop
	// Skipped counts the peers left out of a replication because the family of their
	// address is not the source's. Finish sets it. It counts only peers before
	// the point that was sent; Fill skips the others again.
	Skipped int

	limits    Limits
	trains    [hca.Batch]Train
	numTrains int
	datagrams [hca.Batch]datagram
	n         int    // datagrams
	psn       uint32 // of the next datagram, with spare
	spare     int    // numbers that were taken for the next datagrams

	packets [hca.Batch * maxPacket]byte // of all trains
	used    int                         // bytes of packets
	path    roce.Path                   // of the last train
	sealer  roce.Sealer

	more    bool         // requests follow the current one
	peers   []netip.Addr // destinations of the copies
	skipped int          // peers skipped since the last copy
	status  hca.WCStatus // with TailFail
	after   datagram     // with TailLoop
	loop    [1 + MaxSGE][]byte
	headers [segment.MaxHeader]byte // the first piece of loop
	msg     message
}

// Trains returns the packets to send, in order.
func (b *Batch) Trains() []Train { return b.trains[:b.numTrains] }

// clear empties the batch.
func (b *Batch) clear(limits Limits) {
	b.Tail, b.Reason, b.Skipped = TailNone, Passed, 0
	b.limits, b.numTrains, b.n, b.used = limits, 0, 0, 0
	b.peers, b.skipped, b.spare = nil, 0, 0
}

// number returns the sequence number of the next datagram, with which want datagrams of the request begin.
func (b *Batch) number(p *PSNs, want int) uint32 {
	if b.spare == 0 {
		b.spare = min(want, hca.Batch-b.n)
		b.psn = p.take(b.spare)
	}
	b.spare--
	b.psn++
	return b.psn - 1
}

func (b *Batch) full() bool { return b.n == hca.Batch }

func (b *Batch) drop(r Reason) { b.Tail, b.Reason = TailDrop, r }

func (b *Batch) fail(r Reason, s hca.WCStatus) { b.Tail, b.Reason, b.status = TailFail, r, s }

// add builds the datagram of the current message for one destination. The request proceeds by
// d once the datagram is sent.
func (b *Batch) add(env *Env, dst netip.Addr, ttl uint8, psn uint32, d datagram) {
	m := &b.msg
	m.bth.Pad = uint8(roce.PadFor(m.head + m.payload.size))
	size := m.size()
	t := b.trainFor(env, dst, ttl, size)
	m.bth.PSN, d.psn = psn&psnMask, psn
	b.datagrams[b.n] = d
	b.n++

	start := b.used - len(t.Data)
	packet := b.packets[b.used : b.used+size]
	b.used += size
	m.bth.Put(packet)
	m.deth.Put(packet[roce.BTHLen:])
	m.putHeaders(packet[roce.HeaderLen:])
	at := roce.HeaderLen + m.head
	for _, piece := range m.payload.list() {
		at += copy(packet[at:], piece)
	}
	clear(packet[at:])
	b.path.ID = uint16(t.Segs)
	b.sealer.Seal(&b.path, packet)

	t.Segs++
	t.Data = b.packets[start:b.used]
	t.end = b.n
}

// trainFor returns the train that a datagram of this size joins: the last one, if it can be
// extended, else a new one.
func (b *Batch) trainFor(env *Env, dst netip.Addr, ttl uint8, size int) *Train {
	m := &b.msg
	if b.numTrains > 0 {
		t := &b.trains[b.numTrains-1]
		if t.continues(m, dst, ttl, size) && !b.limits.reached(t, size) {
			return t
		}
	}
	t := &b.trains[b.numTrains]
	b.numTrains++
	*t = Train{Src: m.src, Dst: dst, TOS: m.traffic, TTL: ttl, SegSize: size, qpn: m.bth.DestQPN}
	b.path = roce.Path{Src: m.src, Dst: dst, SrcPort: env.SrcPort}
	return t
}

// continues reports whether a datagram may follow those of the train, apart from the limits.
func (t *Train) continues(m *message, dst netip.Addr, ttl uint8, size int) bool {
	return len(t.Data) == t.Segs*t.SegSize && size <= t.SegSize && // a shorter datagram ends its train
		t.Dst == dst && t.qpn == m.bth.DestQPN && t.Src == m.src && t.TTL == ttl && t.TOS == m.traffic
}

// reached reports whether a train cannot take another datagram.
func (l Limits) reached(t *Train, size int) bool {
	return t.Segs >= l.MaxSegs || len(t.Data)+size > l.MaxBytes
}

// shouldEnd reports whether the batch should end before the current message, with which left
// datagrams of its request begin, first if it is the request's first one. The next batch can then
// send as one train what this one has no room for: a train like the last one, which is full, or
// all of a request.
func (b *Batch) shouldEnd(left int, first bool) bool {
	room := hca.Batch - b.n
	if b.n == 0 || left <= room && !b.more {
		return false
	}
	m, t := &b.msg, &b.trains[b.numTrains-1]
	size := m.size()
	if t.continues(m, m.dst, m.hops, size) {
		return b.limits.reached(t, size) && room < t.Segs
	}
	return first && left > room && left <= hca.Batch
}

// message is a request, or a segment of it, whose memory and addresses are resolved.
type message struct {
	src, dst      netip.Addr
	traffic, hops uint8
	bth           roce.BTH
	deth          roce.DETH
	all           pieces // the memory of the request

	plan    *segment.Plan // of the headers that are not in place, or nil
	seg     int           // segment of plan
	head    int           // bytes of these headers
	covered int           // bytes of the payload that their checksum covers
	payload pieces        // the message after these headers
	whole   segment.Plan  // of a message that lacks checksums
}

// size returns the length of the message's packet, from the BTH to the ICRC.
func (m *message) size() int {
	n := m.head + m.payload.size
	return roce.HeaderLen + n + roce.PadFor(n) + roce.ICRCLen
}

// cut prepares segment seg of a large send.
func (m *message) cut(plan *segment.Plan, seg int) {
	off, n := plan.Payload(seg)
	m.plan, m.seg, m.head, m.covered = plan, seg, plan.HeaderLen(), n
	m.payload.slice(&m.all, off, n)
}

// complete prepares a message that lacks checksums. It does not change a message that needs none.
func (m *message) complete() {
	var head [segment.MaxHeader]byte
	n := m.all.peek(head[:])
	if m.whole.Whole(head[:n], hca.EncapLen, m.all.size) != nil {
		return
	}
	m.plan, m.seg, m.head = &m.whole, 0, m.whole.HeaderLen()
	_, m.covered = m.whole.Payload(0)
	m.payload.slice(&m.all, m.head, m.all.size-m.head)
}

// putHeaders writes the headers that are not in place.
func (m *message) putHeaders(dst []byte) {
	if m.plan == nil {
		return
	}
	var sum segment.Sum
	left := m.covered
	for _, b := range m.payload.list() {
		b = b[:min(left, len(b))]
		sum.Add(b)
		left -= len(b)
	}
	m.plan.Put(dst, m.seg, sum)
}
