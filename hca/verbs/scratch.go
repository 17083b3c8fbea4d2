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

// array allocates n zeroed elements outside the Go heap.
func array[T any](n int) []T {
	var t T
	return unsafe.Slice((*T)(C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(t)))), n)
}

func freeArray[T any](a []T) { C.free(unsafe.Pointer(unsafe.SliceData(a))) }

// receiver is the memory in which a batch of receives is built.
type receiver struct {
	wrs  []C.struct_ibv_recv_wr // C memory
	sges []hca.SGE              // C memory
	each int                    // entries of the list of a request
}

func newReceiver(n, sges int) receiver {
	return receiver{wrs: array[C.struct_ibv_recv_wr](n), sges: array[hca.SGE](n * sges), each: sges}
}

func (r *receiver) free() {
	freeArray(r.wrs)
	freeArray(r.sges)
}

// fill translates as many receives as there is room for. If a receive must not be posted, it
// stops there and returns the error.
func (r *receiver) fill(wrs []hca.RecvWR) (n int, err error) {
	for n < min(len(wrs), len(r.wrs)) {
		list := r.sges[n*r.each:][:r.each]
		if len(wrs[n].SGList) > r.each {
			return n, errTooLong
		}
		c := &r.wrs[n]
		c.wr_id, c.sg_list, c.num_sge = C.uint64_t(wrs[n].ID), sgList(list), C.int(copy(list, wrs[n].SGList))
		n++
	}
	return n, nil
}

// sgList returns a list as C sees it.
func sgList(list []hca.SGE) *C.struct_ibv_sge {
	return (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(list)))
}
