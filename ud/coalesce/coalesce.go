package coalesce

import (
	"bytes"
	"encoding/binary"

	"ipoibd/hca"
	"ipoibd/hca/join"
	"ipoibd/ud/vnet"
)

// MaxFlows bounds the runs that are open at once. Each frame is compared with them, one after
// the other, and a batch of more flows has few frames for each. A further flow ends the oldest
// run.
const MaxFlows = 16

// Offsets in a frame with its virtio header in front (IEEE 802.3).
const (
	etherAt = vnet.HeaderLen
	typeAt  = etherAt + 12
	ipAt    = etherAt + 14
)

// EtherTypes.
const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
)

// etherMinPayload is the length up to which Ethernet pads a packet (IEEE 802.3, 4.4.2).
const etherMinPayload = 46

// Coalescer joins the frames of batches. Only one goroutine at a time may use it.
type Coalescer struct {
	udp     bool
	packets []join.Packet // by input
	next    []int         // by input: the next input of its run
	runs    []run         // in the order of their first inputs
	open    []int         // indexes of runs that may grow, the oldest first

	order []int    // inputs, in the order of the output
	vecs  [][]byte // the slice of each of them
	out   [][][]byte
}

// run is a sequence of frames that become one.
type run struct {
	join.Run
	first, last int // inputs
	at          int // where it begins in order and vecs
}

// New returns a Coalescer for up to batch frames at a time. It joins UDP only if udp is set,
// which requires a kernel that accepts segmentation of UDP at a TAP.
func New(batch int, udp bool) *Coalescer {
	return &Coalescer{
		udp:     udp,
		packets: make([]join.Packet, batch),
		next:    make([]int, batch),
		runs:    make([]run, 0, batch),
		open:    make([]int, 0, MaxFlows),
		order:   make([]int, 0, batch),
		vecs:    make([][]byte, 0, batch),
		out:     make([][][]byte, 0, batch),
	}
}

// Join joins the frames of a batch, each of the sender at the same index, which is a key ([hca.UDSource.Key]).
// Frames of different senders are never joined. Several senders may have the same Ethernet address: the queue
// pairs of one GID, as long as the peer table knows none or only one of them. Each frame is a virtio header and an Ethernet frame. The
// virtio header may have only the flag DataValid, which states that the device has verified the
// checksums of IPv4, TCP and UDP. Each returned frame is a list of slices, whose concatenation
// is again a virtio header and an Ethernet frame. The slices are parts of the input frames,
// whose headers Join may have changed. They are valid until the next Join, or until the caller
// reuses the frames. Join panics if there are more frames than the Coalescer was created for.
func (c *Coalescer) Join(frames [][]byte, from []hca.UDSource) [][][]byte {
	c.runs, c.open, c.order, c.vecs, c.out = c.runs[:0], c.open[:0], c.order[:0], c.vecs[:0], c.out[:0]
	for i, frame := range frames {
		p := &c.packets[i]
		parse(p, frame, c.udp)
		switch p.Kind {
		case join.Foreign:
		case join.Opaque:
			c.endBetween(p)
		case join.Alone:
			c.end(c.find(frames, i))
		case join.Joinable:
			if c.extend(frames, from, i) {
				continue
			}
		}
		r := run{first: i, last: i}
		r.Start(p)
		c.runs = append(c.runs, r)
		if !r.Ended {
			c.start(len(c.runs) - 1)
		}
	}
	for r := range c.runs {
		c.assemble(frames, &c.runs[r])
	}
	return c.out
}

// Inputs returns the indexes of the frames that the k-th frame of the last Join consists of, in
// order: one for each of its slices. The result is valid until the next Join.
func (c *Coalescer) Inputs(k int) []int {
	r := &c.runs[k]
	return c.order[r.at : r.at+r.N]
}

// find returns the index in open of the run of a frame's flow, or -1.
func (c *Coalescer) find(frames [][]byte, i int) int {
	for k, r := range c.open {
		first := c.runs[r].first
		if c.packets[first].SameFlow(&c.packets[i], frames[first][ipAt:], frames[i][ipAt:]) {
			return k
		}
	}
	return -1
}

// start opens a run.
func (c *Coalescer) start(r int) {
	if len(c.open) == MaxFlows {
		c.end(0)
	}
	c.open = append(c.open, r)
}

// end closes the k-th open run, if k is not -1.
func (c *Coalescer) end(k int) {
	if k >= 0 {
		c.open = append(c.open[:k], c.open[k+1:]...)
	}
}

// endBetween ends the runs to which a packet whose ports are unknown may belong.
func (c *Coalescer) endBetween(p *join.Packet) {
	for k := len(c.open) - 1; k >= 0; k-- {
		if p.MayShareFlow(&c.packets[c.runs[c.open[k]].first]) {
			c.end(k)
		}
	}
}

// extend adds a frame to the open run of its flow. If the frame does not fit, extend ends
// that run.
func (c *Coalescer) extend(frames [][]byte, from []hca.UDSource, i int) bool {
	k := c.find(frames, i)
	if k < 0 {
		return false
	}
	r, p := &c.runs[c.open[k]], &c.packets[i]
	head, first := &c.packets[r.first], frames[r.first]
	if from[r.first] != from[i] ||
		!bytes.Equal(first[etherAt:ipAt], frames[i][etherAt:ipAt]) ||
		!r.Extend(head, p, first[ipAt:], frames[i][ipAt:]) {
		c.end(k)
		return false
	}
	c.next[r.last], r.last = i, i
	if r.Ended {
		c.end(k)
	}
	return true
}

// parse reads the headers of a frame.
func parse(p *join.Packet, frame []byte, udp bool) {
	*p = join.Packet{}
	if len(frame) < ipAt || frame[etherAt]&1 != 0 { // to a group
		return
	}
	ethertype := binary.BigEndian.Uint16(frame[typeAt:])
	if ethertype != typeIPv4 && ethertype != typeIPv6 {
		return
	}
	p.Parse(frame[ipAt:], ethertype == typeIPv6, udp, etherMinPayload)
	switch flags := vnet.Flags(frame[0]); {
	case p.Kind > join.Opaque && (flags&^vnet.DataValid != 0 || vnet.GSOType(frame[1]) != vnet.GSONone):
		p.Kind = join.Opaque // already large, or without checksum
	case flags == vnet.DataValid:
		p.SetVerified()
	}
}

// assemble appends a run to the output.
func (c *Coalescer) assemble(frames [][]byte, r *run) {
	r.at = len(c.vecs)
	head := frames[r.first]
	if r.N > 1 {
		p := &c.packets[r.first]
		head = head[:ipAt+p.End]
		r.Enlarge(p, head[ipAt:])
		Virtio(p, p.Size()).Put(head)
	}
	c.order, c.vecs = append(c.order, r.first), append(c.vecs, head)
	for i, n := r.first, r.N; n > 1; n-- {
		i = c.next[i]
		p := &c.packets[i]
		c.order, c.vecs = append(c.order, i), append(c.vecs, frames[i][ipAt+p.Payload:ipAt+p.End])
	}
	c.out = append(c.out, c.vecs[r.at:len(c.vecs):len(c.vecs)])
}

// Virtio returns the virtio header of the large frame with the headers of p, whose segments
// have a payload of mss bytes.
func Virtio(p *join.Packet, mss int) vnet.Header {
	const ip = ipAt - etherAt
	h := vnet.Header{
		Flags: vnet.NeedsCsum, GSOType: vnet.GSOTCPv4, GSOSize: uint16(mss), HdrLen: uint16(ip + p.Payload),
		CsumStart: uint16(ip + p.Transport), CsumOffset: uint16(p.CsumOffset()),
	}
	switch {
	case p.Proto == join.UDP:
		h.GSOType = vnet.GSOUDPL4
	case p.IPv6:
		h.GSOType = vnet.GSOTCPv6
	}
	return h
}
