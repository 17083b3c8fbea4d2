package record

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// MinBytes is the least room of a recorder: for several of the largest frames.
const MinBytes = 1 << 19

// maxLen is the length of the largest frame or message: 64 KB and the headers.
const maxLen = 1<<16 + 256

// Filter decides which packets are recorded.
type Filter interface {
	// Run returns 0 if the Ethernet frame is to be ignored. It must not block or keep the frame.
	Run(frame []byte) (int, error)
}

// Config configures a Recorder.
type Config struct {
	Frames, Messages bool
	In, Out          bool
	Filter           Filter         // nil: records everything
	Origin           func() *Origin // the current address; nil if there is none yet; must not block
	Wake             func()         // called after a batch that added records; must not block
	Bytes            int            // room for copies, at least MinBytes; descriptions take half as much again
}

// Recorder copies packets of one producer for one consumer. The producer calls the methods of
// [ipoibd/ud.Recorder], which never block and never allocate. The consumer calls Peek and
// Release.
type Recorder struct {
	cfg     Config
	ring    *ring
	added   bool            // since the last Done
	recent  [NumKind]uint64 // lost since the last record
	lost    [NumKind]atomic.Uint64
	scratch []byte // where the filter sees packets for which there is no room
}

// NewRecorder returns an empty recorder.
func NewRecorder(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, ring: newRing(max(cfg.Bytes, MinBytes))}
	if cfg.Filter != nil {
		r.scratch = make([]byte, maxLen)
	}
	return r
}

// FromHost records a frame of the host: a virtio header and an Ethernet frame.
func (r *Recorder) FromHost(at time.Time, frame []byte) {
	if !r.cfg.Frames || !r.cfg.Out || len(frame) < vnet.HeaderLen {
		return
	}
	ether := frame[vnet.HeaderLen:]
	s, buf := r.reserve(Frame, 1, len(ether))
	if buf != nil {
		copy(buf, ether)
		r.commit(s, buf, 1, Record{At: at.UnixNano(), Kind: Frame, Out: true})
	}
}

// ToHost records a frame for the host, in pieces. The first begins with a virtio header.
func (r *Recorder) ToHost(at time.Time, pieces [][]byte) {
	n := -vnet.HeaderLen
	for _, p := range pieces {
		n += len(p)
	}
	if !r.cfg.Frames || !r.cfg.In || n < 0 || len(pieces[0]) < vnet.HeaderLen {
		return
	}
	s, buf := r.reserve(Frame, 1, n)
	if buf == nil {
		return
	}
	n = copy(buf, pieces[0][vnet.HeaderLen:])
	for _, p := range pieces[1:] {
		n += copy(buf[n:], p)
	}
	r.commit(s, buf, 1, Record{At: at.UnixNano(), Kind: Frame})
}

// Sent records a message that the queue pair has accepted with the work request wr. If that is
// a large send, msg is the header and the whole payload.
func (r *Recorder) Sent(at time.Time, wr *hca.SendWR, msg []byte) {
	self := r.cfg.Origin()
	if !r.cfg.Messages || !r.cfg.Out || self == nil {
		return
	}
	packets, headers := 1, len(wr.LSO.Header)
	if wr.LSO.MSS > 0 {
		packets = max(1, (len(msg)-headers+wr.LSO.MSS-1)/wr.LSO.MSS)
	}
	s, buf := r.reserve(Message, packets, viewLen(msg))
	if buf == nil {
		return
	}
	rec := Record{
		At: at.UnixNano(), Kind: Message, Out: true, self: *self, mss: wr.LSO.MSS, headers: headers,
		to: wr.UD.AH.Spec(), qpn: wr.UD.QPN, qkey: wr.UD.QKey,
	}
	if rec.qkey&hca.QKeyControlled != 0 {
		rec.qkey = self.QKey
	}
	rec.putView(buf, msg)
	r.commit(s, buf, packets, rec)
}

// Received records a receive that completed successfully. buf is its memory, which begins with
// the GRH area; only the first wc.ByteLen bytes of it are recorded.
func (r *Recorder) Received(at time.Time, wc *hca.WC, buf []byte) {
	self := r.cfg.Origin()
	if !r.cfg.Messages || !r.cfg.In || self == nil || len(buf) < hca.GRHLen {
		return
	}
	end := min(uint64(wc.ByteLen), uint64(len(buf)))
	msg := buf[hca.GRHLen:max(end, hca.GRHLen)]
	packets := max(1, wc.LRO.Segments)
	s, view := r.reserve(Message, packets, viewLen(msg))
	if view == nil {
		return
	}
	rec := Record{At: at.UnixNano(), Kind: Message, self: *self, mss: wc.LRO.MSS, grh: [hca.GRHLen]byte(buf), wc: *wc}
	rec.putView(view, msg)
	r.commit(s, view, packets, rec)
}

// Done ends a batch.
func (r *Recorder) Done() {
	if r.added {
		r.added = false
		r.cfg.Wake()
	}
}

// Peek returns the oldest record, or nil if there is none. It is valid until Release.
func (r *Recorder) Peek() *Record {
	if s := r.ring.peek(); s != nil {
		return &s.Record
	}
	return nil
}

// Release frees the oldest record.
func (r *Recorder) Release() { r.ring.release() }

// Lost returns how many packets of a kind were lost because the ring was full. Any goroutine
// may call it.
func (r *Recorder) Lost(k Kind) uint64 { return r.lost[k].Load() }

// reserve returns n bytes for a copy. Without room, they are only for the filter, and s is nil;
// without a filter, the packets are then lost and the bytes nil.
func (r *Recorder) reserve(k Kind, packets, n int) (s *slot, buf []byte) {
	if s, buf = r.ring.reserve(n); s == nil {
		if r.cfg.Filter != nil && n <= len(r.scratch) {
			return nil, r.scratch[:n]
		}
		r.lose(k, packets)
	}
	return s, buf
}

// commit adds the record, unless the filter ignores it, or it is lost.
func (r *Recorder) commit(s *slot, buf []byte, packets int, rec Record) {
	if r.cfg.Filter != nil {
		if n, err := r.cfg.Filter.Run(buf); n == 0 || err != nil {
			return
		}
	}
	if s == nil {
		r.lose(rec.Kind, packets)
		return
	}
	rec.Data, rec.Lost = buf, r.recent[rec.Kind]
	s.Record = rec
	r.recent[rec.Kind] = 0
	r.ring.commit(s)
	r.added = true
}

func (r *Recorder) lose(k Kind, packets int) {
	r.recent[k] += uint64(packets)
	r.lost[k].Add(uint64(packets))
}

// viewLen returns the length of the view of a message.
func viewLen(msg []byte) int { return etherLen + max(0, len(msg)-ipoib.HeaderLen) }

// putView copies a message so that a filter for Ethernet can read it.
func (rec *Record) putView(buf, msg []byte) {
	clear(buf[:etherType])
	rec.headLen = uint8(copy(rec.head[:], msg))
	binary.BigEndian.PutUint16(buf[etherType:], binary.BigEndian.Uint16(rec.head[:]))
	copy(buf[etherLen:], msg[rec.headLen:])
}
