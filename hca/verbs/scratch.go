//go:build cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"unsafe"

	"ipoibd/hca"
)

// hca.SGE has the layout of struct ibv_sge, so lists are copied without conversion.
var (
	_ [unsafe.Sizeof(hca.SGE{})]byte          = [C.sizeof_struct_ibv_sge]byte{}
	_ [unsafe.Offsetof(hca.SGE{}.Length)]byte = [unsafe.Offsetof(C.struct_ibv_sge{}.length)]byte{}
	_ [unsafe.Offsetof(hca.SGE{}.LKey)]byte   = [unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]byte{}
)

// cUD is the destination of a send.
type cUD = C.struct_shim_ud

// array allocates n zeroed elements outside the Go heap.
func array[T any](n int) []T {
	var t T
	return unsafe.Slice((*T)(C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(t)))), n)
}

func freeArray[T any](a []T) { C.free(unsafe.Pointer(unsafe.SliceData(a))) }

// lists are the scatter/gather lists of a batch.
type lists struct {
	sges []hca.SGE // C memory
	each int       // entries of one list
}

// put copies a list to place i and returns its address. It returns false if the list is too
// long.
func (l *lists) put(i int, list []hca.SGE) (*C.struct_ibv_sge, bool) {
	if len(list) > l.each {
		return nil, false
	}
	at := l.sges[i*l.each:][:l.each]
	copy(at, list)
	return (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(at))), true
}

// scratch is the C memory in which a batch of requests is built.
type scratch[W any] struct {
	wrs   []W
	lists lists
}

func newScratch[W any](n, sges int) scratch[W] {
	return scratch[W]{wrs: array[W](n), lists: lists{sges: array[hca.SGE](n * sges), each: sges}}
}

func (s *scratch[W]) free() {
	freeArray(s.wrs)
	freeArray(s.lists.sges)
}

// sendScratch is the scratch of a send queue.
type sendScratch struct {
	scratch[C.struct_ibv_send_wr]
}

func newSendScratch(n, sges int) sendScratch {
	return sendScratch{newScratch[C.struct_ibv_send_wr](n, sges)}
}

// fill translates as many sends of a QP as there is room for. If a send must not be posted,
// it stops there and returns the error.
func (s *sendScratch) fill(wrs []hca.SendWR, q *QP) (n int, err error) {
	for n < min(len(wrs), len(s.wrs)) {
		if err := s.put(n, &wrs[n], q); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (s *sendScratch) put(i int, wr *hca.SendWR, q *QP) error {
	ah := q.pd.handle(wr.UD.AH)
	if ah == nil {
		return errAH
	}
	list, ok := s.lists.put(i, wr.SGList)
	if !ok {
		return errTooLong
	}
	switch {
	case wr.LSO.MSS != 0:
		return errLSO
	case wr.Flags&hca.SendIPCsum != 0 && !q.pd.dev.attr.IPCsum:
		return errIPCsum
	}
	c := &s.wrs[i]
	c.wr_id, c.opcode, c.send_flags = C.uint64_t(wr.ID), C.IBV_WR_SEND, sendFlags(wr.Flags)
	c.sg_list, c.num_sge = list, C.int(len(wr.SGList))
	*(*cUD)(unsafe.Pointer(&c.wr)) = cUD{
		ah: ah, remote_qpn: C.uint32_t(wr.UD.QPN), remote_qkey: q.keyOf(wr.UD.QKey),
	}
	return nil
}

// keyOf replaces a controlled Q_Key by the QP's own, as an HCA does (IBA 10.2.5) and rxe
// does not.
func (q *QP) keyOf(key hca.QKey) C.uint32_t {
	if key&hca.QKeyControlled != 0 {
		return C.uint32_t(q.qkey.Load())
	}
	return C.uint32_t(key)
}

func sendFlags(f hca.SendFlags) (c C.uint) {
	if f&hca.SendSignaled != 0 {
		c |= C.IBV_SEND_SIGNALED
	}
	if f&hca.SendSolicited != 0 {
		c |= C.IBV_SEND_SOLICITED
	}
	if f&hca.SendIPCsum != 0 {
		c |= C.IBV_SEND_IP_CSUM
	}
	return c
}

// recvScratch is the scratch of a receive queue.
type recvScratch struct {
	scratch[C.struct_ibv_recv_wr]
}

func newRecvScratch(n, sges int) recvScratch {
	return recvScratch{newScratch[C.struct_ibv_recv_wr](n, sges)}
}

// fill translates receives, see sendScratch.fill.
func (s *recvScratch) fill(wrs []hca.RecvWR) (n int, err error) {
	for n < min(len(wrs), len(s.wrs)) {
		list, ok := s.lists.put(n, wrs[n].SGList)
		if !ok {
			return n, errTooLong
		}
		c := &s.wrs[n]
		c.wr_id, c.sg_list, c.num_sge = C.uint64_t(wrs[n].ID), list, C.int(len(wrs[n].SGList))
		n++
	}
	return n, nil
}
