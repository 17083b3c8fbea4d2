package softqp

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// MaxVec is the longest gather list of a datagram: header, payload, trailer.
const MaxVec = 1 + MaxSGE + 1

// Datagram is one RoCEv2 packet, complete with its ICRC.
type Datagram struct {
	Src, Dst netip.Addr
	TOS, TTL uint8
	vec      [MaxVec][]byte
	n        int
	ends     bool // sending it completes its request
	next     int  // of a copy: index of the peer after the one that it goes to
	skipped  int  // of a copy: peers skipped since the previous copy
	header   [roce.HeaderLen]byte
	trailer  [roce.MaxPad + roce.ICRCLen]byte
}

// Vec returns the gather list. It refers to memory of the batch and of the request.
func (d *Datagram) Vec() [][]byte { return d.vec[:d.n] }

// Len returns the length in bytes, from the BTH to the ICRC.
func (d *Datagram) Len() (n int) {
	for _, v := range d.vec[:d.n] {
		n += len(v)
	}
	return n
}

// Tail says how the last request of a batch ends, if not with a datagram.
type Tail uint8

// Tails.
const (
	TailNone Tail = iota
	TailDrop      // it completes but is not sent; Batch.Reason says why
	TailFail      // it completes in error; Batch.Reason says why
	TailLoop      // it completes; the shell then delivers Batch.Loop to the QPs of this port
)

// Batch holds the datagrams that Fill builds from the requests at the head of a send
// queue. It belongs to the send side of one QP, which reuses it.
type Batch struct {
	Tail   Tail
	Reason Reason  // with TailDrop and TailFail
	Loop   Inbound // with TailLoop
	// Skipped counts the peers left out of a replication because the family of their
	// address is not that of the source. Finish sets it. It counts only peers before
	// the point that was sent; Fill skips the others again.
	Skipped int

	datagrams [hca.Batch]Datagram
	n         int
	peers     []netip.Addr // destinations of the copies
	skipped   int          // peers skipped since the last copy
	status    hca.WCStatus // with TailFail
	msg       message
}

// Datagrams returns the datagrams to send, in order.
func (b *Batch) Datagrams() []Datagram { return b.datagrams[:b.n] }

func (b *Batch) full() bool { return b.n == hca.Batch }

func (b *Batch) drop(r Reason) { b.Tail, b.Reason = TailDrop, r }

func (b *Batch) fail(r Reason, s hca.WCStatus) { b.Tail, b.Reason, b.status = TailFail, r, s }

// add builds the datagram of the current message for one destination.
func (b *Batch) add(env *Env, dst netip.Addr, psn uint32, ends bool) {
	d, m := &b.datagrams[b.n], &b.msg
	d.Src, d.Dst, d.TOS, d.TTL, d.ends, d.next, d.skipped = m.src, dst, m.traffic, m.hops, ends, 0, 0
	m.bth.PSN = (psn + uint32(b.n)) & psnMask
	m.bth.Put(d.header[:])
	m.deth.Put(d.header[roce.BTHLen:])
	b.n++
	// The gather list has header, payload and padding, to which the ICRC over all of them
	// is appended.
	d.vec[0] = d.header[:]
	last := 1 + copy(d.vec[1:], m.payload.list())
	d.n = last + 1
	clear(d.trailer[:roce.MaxPad])
	d.vec[last] = d.trailer[:m.bth.Pad]
	path := roce.Path{Src: m.src, Dst: dst, SrcPort: env.SrcPort}
	icrc := roce.ICRC(&path, d.Vec()...)
	d.vec[last] = d.trailer[:m.bth.Pad+roce.ICRCLen]
	roce.PutICRC(d.vec[last][m.bth.Pad:], icrc)
}

// message is a request whose memory and addresses are resolved.
type message struct {
	src, dst      netip.Addr
	traffic, hops uint8
	bth           roce.BTH
	deth          roce.DETH
	payload       pieces
}
