package coalesce

import (
	"bytes"
	"encoding/binary"

	"ipoibd/hca/checksum"
	"ipoibd/ud/vnet"
)

// Limits of a large frame and of a batch.
const (
	// MaxBytes bounds the IP packet in a large frame: the length fields of IPv4 and UDP have
	// 16 bits, and the kernel's GRO has the same limit for IPv6 (GRO_LEGACY_MAX_SIZE).
	MaxBytes = 65535
	// MaxSegments bounds the frames joined into one. Linux before 6.9 refuses UDP frames with
	// more segments (UDP_MAX_SEGMENTS), and the kernel's GRO does not join more datagrams
	// (UDP_GRO_CNT_MAX).
	MaxSegments = 64
	// MaxFlows bounds the runs that are open at once. Each frame is compared with all of them,
	// and a batch with more flows has few frames for each. A run beyond the bound ends the
	// oldest one.
	MaxFlows = 16
)

// Coalescer joins the frames of batches. Only one goroutine at a time may use it.
type Coalescer struct {
	udp     bool
	packets []packet // by input
	next    []int    // by input: the next input of its run
	runs    []run    // in the order of their first inputs
	open    []int    // indexes of runs that may grow, the oldest first

	order []int    // inputs, in the order of the output
	vecs  [][]byte // the slice of each of them
	out   [][][]byte
}

// run is a sequence of frames that become one.
type run struct {
	first, last int // inputs
	n           int
	bytes       int  // of payload
	fixedID     bool // all IPv4 identifications are equal
	at          int  // where it begins in order and vecs
}

// New returns a Coalescer for up to batch frames at a time. It joins UDP only if udp is set,
// which requires a kernel that accepts segmentation of UDP at a TAP.
func New(batch int, udp bool) *Coalescer {
	return &Coalescer{
		udp:     udp,
		packets: make([]packet, batch),
		next:    make([]int, batch),
		runs:    make([]run, 0, batch),
		open:    make([]int, 0, MaxFlows),
		order:   make([]int, 0, batch),
		vecs:    make([][]byte, 0, batch),
		out:     make([][][]byte, 0, batch),
	}
}

// Join joins the frames of a batch. Each frame is a virtio header and an Ethernet frame. The
// virtio header may have only the flag DataValid, which states that the device has verified the
// checksums of IPv4, TCP and UDP. Each returned frame is a list of slices, whose concatenation
// is again a virtio header and an Ethernet frame. The slices are parts of the input frames,
// whose headers Join may have changed. They are valid until the next Join, or until the caller
// reuses the frames. Join panics if there are more frames than the Coalescer was created for.
func (c *Coalescer) Join(frames [][]byte) [][][]byte {
	c.runs, c.open, c.order, c.vecs, c.out = c.runs[:0], c.open[:0], c.order[:0], c.vecs[:0], c.out[:0]
	for i, frame := range frames {
		p := &c.packets[i]
		p.parse(frame, c.udp)
		switch p.kind {
		case foreign:
		case opaque:
			c.endBetween(p)
		case alone:
			c.end(c.find(frames, i))
		case joinable:
			if c.extend(frames, i) {
				continue
			}
		}
		c.runs = append(c.runs, run{first: i, last: i, n: 1, bytes: p.size()})
		if p.kind == joinable && !p.pushes(frame) {
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
	return c.order[r.at : r.at+r.n]
}

// find returns the index in open of the run of a frame's flow, or -1.
func (c *Coalescer) find(frames [][]byte, i int) int {
	for k, r := range c.open {
		first := c.runs[r].first
		if sameFlow(&c.packets[first], &c.packets[i], frames[first], frames[i]) {
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
func (c *Coalescer) endBetween(p *packet) {
	for k := len(c.open) - 1; k >= 0; k-- {
		q := &c.packets[c.runs[c.open[k]].first]
		if q.pair == p.pair && (p.proto == 0 || p.proto == q.proto) {
			c.end(k)
		}
	}
}

// extend adds a frame to the open run of its flow. If the frame does not fit, extend ends
// that run.
func (c *Coalescer) extend(frames [][]byte, i int) bool {
	k := c.find(frames, i)
	if k < 0 {
		return false
	}
	r, p := &c.runs[c.open[k]], &c.packets[i]
	head := &c.packets[r.first]
	fixedID, fits := r.fits(head, p, frames[r.first], frames[i])
	if !fits || !head.verified(frames[r.first]) || !p.verified(frames[i]) {
		c.end(k)
		return false
	}
	c.next[r.last] = i
	r.last, r.n, r.bytes, r.fixedID = i, r.n+1, r.bytes+p.size(), fixedID
	if p.size() < head.size() || p.pushes(frames[i]) {
		c.end(k)
	}
	return true
}

// fits reports whether a frame q of the run's flow may follow the run, whose first frame is
// p, and whether the run's IPv4 identifications then are equal.
func (r *run) fits(p, q *packet, pFrame, qFrame []byte) (fixedID, ok bool) {
	if r.n == MaxSegments || q.size() > p.size() || p.payload-ipAt+r.bytes+q.size() > MaxBytes ||
		!bytes.Equal(pFrame[etherAt:ipAt], qFrame[etherAt:ipAt]) {
		return false, false
	}
	if p.ipv6 {
		ok = equal32(pFrame, qFrame, ipAt) && pFrame[ipAt+7] == qFrame[ipAt+7] // version, class, flow label; hop limit
	} else if fixedID, ok = r.nextID(pFrame, qFrame); ok {
		ok = equal16(pFrame, qFrame, ipAt) && equal16(pFrame, qFrame, ipv4Frag) && pFrame[ipAt+8] == qFrame[ipAt+8] // service, DF, TTL
	}
	if ok && p.proto == protoTCP {
		ok = r.followsTCP(pFrame[p.transport:p.payload], qFrame[q.transport:q.payload])
	}
	return fixedID, ok
}

// nextID checks the IPv4 identification of the run's next frame. The second frame determines
// whether the identifications rise or, with DF, are all equal.
func (r *run) nextID(p, q []byte) (fixed, ok bool) {
	distance := binary.BigEndian.Uint16(q[ipv4ID:]) - binary.BigEndian.Uint16(p[ipv4ID:])
	fixed = r.fixedID || r.n == 1 && distance == 0 && binary.BigEndian.Uint16(p[ipv4Frag:]) == dontFrag
	if fixed {
		return true, distance == 0
	}
	return false, distance == uint16(r.n)
}

// followsTCP compares the TCP headers of the run's first frame and of its next.
func (r *run) followsTCP(p, q []byte) bool {
	return len(p) == len(q) &&
		binary.BigEndian.Uint32(q[tcpSeq:]) == binary.BigEndian.Uint32(p[tcpSeq:])+uint32(r.bytes) &&
		equal32(p, q, tcpAck) && p[tcpOff] == q[tcpOff] && (p[tcpFlags]^q[tcpFlags])&^flagPSH == 0 &&
		equal16(p, q, tcpWindow) && equal16(p, q, tcpUrgent) && bytes.Equal(p[tcpMinLen:], q[tcpMinLen:])
}

func equal32(a, b []byte, at int) bool {
	return binary.NativeEndian.Uint32(a[at:]) == binary.NativeEndian.Uint32(b[at:])
}

func equal16(a, b []byte, at int) bool {
	return binary.NativeEndian.Uint16(a[at:]) == binary.NativeEndian.Uint16(b[at:])
}

// pushes reports whether a TCP segment has PSH.
func (p *packet) pushes(frame []byte) bool {
	return p.proto == protoTCP && frame[p.transport+tcpFlags]&flagPSH != 0
}

// assemble appends a run to the output.
func (c *Coalescer) assemble(frames [][]byte, r *run) {
	r.at = len(c.vecs)
	head := frames[r.first]
	if r.n > 1 {
		p := &c.packets[r.first]
		head = head[:p.end]
		p.enlarge(head, r.bytes, c.packets[r.last].pushes(frames[r.last]))
	}
	c.order, c.vecs = append(c.order, r.first), append(c.vecs, head)
	for i, n := r.first, r.n; n > 1; n-- {
		i = c.next[i]
		p := &c.packets[i]
		c.order, c.vecs = append(c.order, i), append(c.vecs, frames[i][p.payload:p.end])
	}
	c.out = append(c.out, c.vecs[r.at:len(c.vecs):len(c.vecs)])
}

// enlarge changes the headers of a frame to those of a large frame with that many bytes of
// payload, which begins with this frame's. Segmentation sets PSH only in the last segment.
func (p *packet) enlarge(frame []byte, payload int, push bool) {
	h := vnet.Header{
		Flags: vnet.NeedsCsum, GSOSize: uint16(p.size()), HdrLen: uint16(p.payload - etherAt),
		CsumStart: uint16(p.transport - etherAt), CsumOffset: vnet.CsumOffsetTCP,
	}
	switch {
	case p.proto == protoUDP:
		h.GSOType, h.CsumOffset = vnet.GSOUDPL4, vnet.CsumOffsetUDP
	case p.ipv6:
		h.GSOType = vnet.GSOTCPv6
	default:
		h.GSOType = vnet.GSOTCPv4
	}
	h.Put(frame)
	end := p.payload + payload
	if p.ipv6 {
		binary.BigEndian.PutUint16(frame[ipAt+4:], uint16(end-p.transport))
	} else {
		binary.BigEndian.PutUint16(frame[ipAt+2:], uint16(end-ipAt))
		binary.BigEndian.PutUint16(frame[ipv4Sum:], 0)
		binary.BigEndian.PutUint16(frame[ipv4Sum:], ^checksum.Sum(frame[ipAt:p.transport], 0))
	}
	t := frame[p.transport:]
	if p.proto == protoUDP {
		binary.BigEndian.PutUint16(t[udpLength:], uint16(end-p.transport))
	} else if push {
		t[tcpFlags] |= flagPSH
	}
	binary.BigEndian.PutUint16(t[h.CsumOffset:], checksum.Pseudo(p.addrs(frame), p.proto, end-p.transport))
}
