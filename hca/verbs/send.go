//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"ipoibd/hca"
	"ipoibd/hca/segment"
)

// maxTSO bounds the payload of a large send. The longest frame of a TAP, 64 KiB, has less.
const maxTSO = 1 << 16

// cutSGEs is the number of entries in the list of a segment besides the payload's: its
// headers.
const cutSGEs = 1

// Reasons why a send is not passed to libibverbs.
var (
	errLSO      = fmt.Errorf("%w: the device has too few scatter/gather entries for large sends", hca.ErrInvalid)
	errTooLarge = fmt.Errorf("%w: large send of more than %d bytes", hca.ErrInvalid, maxTSO)
	errTooMany  = fmt.Errorf("%w: large send of more than %d segments, or than the send queue has entries",
		hca.ErrInvalid, hca.MaxLSOSegments)
	errIPCsum = fmt.Errorf("%w: the device fills in no checksums (IBV_DEVICE_UD_IP_CSUM)", hca.ErrInvalid)
	errAH     = fmt.Errorf("%w: not an address handle of this protection domain", hca.ErrInvalid)
	errNoRoom = fmt.Errorf("%w: too few completions have been polled", hca.ErrQueueFull)
)

// cUD is the destination of a send.
type cUD = C.struct_shim_ud

// sender is the send queue of a QP. It cuts large sends, and fills in the checksums that the
// device does not. The list of a segment refers to its headers, in registered memory of the
// sender, and to its part of the caller's payload.
type sender struct {
	q    *QP
	book *book
	// Memory of the requests of a batch, with room for as many as the queue, and their number.
	wrs  []C.struct_ibv_send_wr // C memory
	sges []hca.SGE              // C memory
	each int                    // entries of the list of a request
	used int
	// headers has a place of segment.MaxHeader bytes for each entry of the book; nil if the
	// device has no large sends.
	headers hca.MR

	// The send being translated.
	to     cUD
	flags  C.uint
	plan   segment.Plan
	pieces []piece // of its list
	next   int     // the first piece that is not used up
}

// piece is a part of a list. bytes is nil if the memory does not belong to this domain; the
// device then refuses the request.
type piece struct {
	sge   hca.SGE
	bytes []byte
}

// init allocates the memory of a QP's sender.
func (s *sender) init(q *QP) (err error) {
	var headers hca.MR
	if q.pd.dev.attr.MaxTSO > 0 {
		if headers, err = q.pd.allocHeaders(places(q.spec.SendWRs) * segment.MaxHeader); err != nil {
			return err
		}
	}
	s.setUp(q, headers)
	return nil
}

// setUp allocates the rest. headers is nil on a device without large sends.
func (s *sender) setUp(q *QP, headers hca.MR) {
	depth, each := q.spec.SendWRs, q.spec.SendSGEs
	if headers != nil {
		each += cutSGEs
	}
	*s = sender{
		q: q, book: newBook(depth), headers: headers, pieces: make([]piece, 0, each),
		wrs: array[C.struct_ibv_send_wr](depth), sges: array[hca.SGE](depth * each), each: each,
	}
}

func (s *sender) free() {
	s.freeRequests()
	if s.headers != nil {
		s.q.pd.headers.put(s.headers)
	}
}

func (s *sender) freeRequests() {
	freeArray(s.wrs)
	freeArray(s.sges)
}

// fill translates sends, until it has maxPost requests. If a send must not be posted, it stops
// there and returns the error.
func (s *sender) fill(wrs []hca.SendWR) (n int, err error) {
	s.used = 0
	r := &s.q.pd.regions
	r.mu.RLock() // the memory of payloads stays mapped
	defer r.mu.RUnlock()
	for n < len(wrs) && s.used < maxPost {
		if err = s.put(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if err == errNoRoom && s.used > 0 { //nolint:errorlint // it is not wrapped
		// A completion must free the room that the refused send needs, even if the caller
		// requested none for the sends before it.
		s.wrs[s.used-1].send_flags |= C.IBV_SEND_SIGNALED
	}
	return n, err
}

// post posts the requests that fill has built for n sends. If the device accepts only the first
// segments of a large send, post then posts only its last one, which is signaled, so that the
// send completes. The segments in between are lost, as any datagram may be. If the device refuses
// that one too, the send would never complete, so post reports that the queue pair has failed
// (EIO).
func (s *sender) post(n int) (taken int, err syscall.Errno) {
	s.book.post()
	p := C.shim_post_send(s.q.qp, &s.wrs[0], C.int(s.used))
	refused, err := s.used-int(p.taken), errno(p.err)
	if rest := s.book.rest(refused); rest > 0 {
		refused, err = refused-rest, 0
		if C.shim_post_send(s.q.qp, &s.wrs[s.used-refused-1], 1).taken == 0 {
			err = syscall.EIO
		}
	}
	return n - s.book.takeBack(refused), err
}

// put translates a send.
func (s *sender) put(wr *hca.SendWR) error {
	q := s.q
	s.to = cUD{ah: q.pd.handle(wr.UD.AH), remote_qpn: C.uint32_t(wr.UD.QPN), remote_qkey: q.keyOf(wr.UD.QKey)}
	s.flags = sendFlags(wr.Flags)
	large, n := wr.LSO.MSS != 0, 1
	switch {
	case s.to.ah == nil:
		return errAH
	case len(wr.SGList) > q.spec.SendSGEs:
		return errTooLong
	case large:
		if err := s.cut(wr); err != nil {
			return err
		}
		n = s.plan.Segments()
	case wr.Flags&hca.SendIPCsum != 0 && !q.pd.dev.attr.IPCsum:
		return errIPCsum
	}
	if n > s.book.room() {
		return errNoRoom
	}
	reports := q.spec.SignalAll || wr.Flags&hca.SendSignaled != 0
	first := s.book.add(wr.ID, n, reports)
	switch {
	case large:
		for i := range n {
			s.putSegment(first+uint64(i), i)
		}
	case wr.Flags&hca.SendIPCsum != 0:
		s.putChecked(first, wr.SGList)
	default:
		s.request(first, copy(s.list(), wr.SGList))
	}
	if reports || large { // a large send must free its room even if the caller requests no completion
		s.wrs[s.used-1].send_flags |= C.IBV_SEND_SIGNALED
	}
	return nil
}

// sendFlags translates the flags that apply to each request of a send.
func sendFlags(f hca.SendFlags) (c C.uint) {
	if f&hca.SendSolicited != 0 {
		c |= C.IBV_SEND_SOLICITED
	}
	return c
}

// keyOf replaces a controlled Q_Key by the QP's own, as an HCA does (IBA 10.2.5) and rxe
// does not.
func (q *QP) keyOf(key hca.QKey) C.uint32_t {
	if key&hca.QKeyControlled != 0 {
		return C.uint32_t(q.qkey.Load())
	}
	return C.uint32_t(key)
}

// list returns the memory for the list of the next request.
func (s *sender) list() []hca.SGE { return s.sges[s.used*s.each:][:s.each] }

// request builds the next request, with the first n entries of its list.
func (s *sender) request(number uint64, n int) {
	c := &s.wrs[s.used]
	c.wr_id, c.opcode, c.send_flags = C.uint64_t(number), C.IBV_WR_SEND, s.flags
	c.sg_list, c.num_sge = sgList(s.list()), C.int(n)
	*(*cUD)(unsafe.Pointer(&c.wr)) = s.to
	s.used++
}

// cut plans the segments of a large send.
func (s *sender) cut(wr *hca.SendWR) error {
	if s.headers == nil {
		return errLSO
	}
	size := s.resolve(wr.SGList)
	if size > maxTSO {
		return errTooLarge
	}
	if err := s.plan.Cut(wr.LSO.Header, hca.EncapLen, size, wr.LSO.MSS); err != nil {
		return fmt.Errorf("%w: %w", hca.ErrInvalid, err)
	}
	if s.plan.Segments() > min(hca.MaxLSOSegments, s.q.spec.SendWRs) {
		return errTooMany
	}
	return nil
}

// putSegment builds the request of segment i.
func (s *sender) putSegment(number uint64, i int) {
	_, n := s.plan.Payload(i)
	entries, sum := s.gather(n, n)
	s.putHeaders(number, i, sum)
	s.request(number, entries)
}

// putChecked builds the request of a message whose checksums are missing. A device that fills
// in checksums is used for IPv4 only, as in Linux (ipoib_set_dev_features in
// drivers/infiniband/ulp/ipoib/ipoib_main.c). A message that is not IP is sent unchanged.
func (s *sender) putChecked(number uint64, list []hca.SGE) {
	var first [segment.MaxHeader]byte
	size := s.resolve(list)
	head := first[:s.peek(first[:])]
	byDevice := s.q.pd.dev.fillsCsum && len(head) > hca.EncapLen && head[hca.EncapLen]>>4 == 4
	if byDevice {
		s.flags |= C.IBV_SEND_IP_CSUM
	}
	if byDevice || s.plan.Whole(head, hca.EncapLen, size) != nil {
		s.request(number, copy(s.list(), list))
		return
	}
	_, covered := s.plan.Payload(0)
	s.skip(s.plan.HeaderLen())
	entries, sum := s.gather(size-s.plan.HeaderLen(), covered)
	s.putHeaders(number, 0, sum)
	s.request(number, entries)
}

// putHeaders writes the headers of segment i to the memory of a request, and adds that to the
// list.
func (s *sender) putHeaders(number uint64, i int, payload segment.Sum) {
	at, n := s.book.place(number)*segment.MaxHeader, s.plan.HeaderLen()
	s.plan.Put(s.headers.Bytes()[at:at+n], i, payload)
	s.list()[0] = s.headers.SGE(at, n)
}

// resolve finds the memory of a list, and returns its length in bytes.
func (s *sender) resolve(list []hca.SGE) (size int) {
	s.pieces, s.next = s.pieces[:0], 0
	for _, e := range list {
		s.pieces = append(s.pieces, piece{e, s.q.pd.regions.find(e)})
		size += int(e.Length)
	}
	return size
}

// peek copies the beginning of the pieces. It stops at memory that it must not read.
func (s *sender) peek(dst []byte) (n int) {
	for i := range s.pieces {
		b := s.pieces[i].bytes
		n += copy(dst[n:], b)
		if len(b) < int(s.pieces[i].sge.Length) {
			break
		}
	}
	return n
}

// take removes up to n bytes from the next piece, and returns them.
func (s *sender) take(n int) (p piece) {
	from := &s.pieces[s.next]
	n = min(n, int(from.sge.Length))
	p.sge = hca.SGE{Addr: from.sge.Addr, Length: uint32(n), LKey: from.sge.LKey}
	if from.bytes != nil {
		p.bytes, from.bytes = from.bytes[:n], from.bytes[n:]
	}
	from.sge.Addr += uint64(n)
	if from.sge.Length -= uint32(n); from.sge.Length == 0 {
		s.next++
	}
	return p
}

// skip removes the next n bytes from the pieces.
func (s *sender) skip(n int) {
	for n > 0 {
		n -= int(s.take(n).sge.Length)
	}
}

// gather moves the next n bytes from the pieces to the list of the next request, after the
// entry of its headers. It returns the number of entries, and the sum of the first bytes.
func (s *sender) gather(n, summed int) (entries int, sum segment.Sum) {
	list := s.list()
	for entries = cutSGEs; n > 0; {
		p := s.take(n)
		if p.sge.Length == 0 {
			continue // a device may take this for 2 GiB
		}
		sum.Add(p.bytes[:min(summed, len(p.bytes))])
		summed -= min(summed, len(p.bytes))
		list[entries] = p.sge
		entries, n = entries+1, n-int(p.sge.Length)
	}
	return entries, sum
}
