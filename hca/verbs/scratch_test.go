//go:build cgo && linux

package verbs

import (
	"errors"
	"testing"
	"unsafe"

	"ipoibd/hca"
)

var (
	sge1 = hca.SGE{Addr: 1 << 40, Length: 100, LKey: 7}
	sge2 = hca.SGE{Addr: 2 << 40, Length: 200, LKey: 8}
)

// listOf returns a list as C sees it.
func listOf[S any](at *S, n int) []hca.SGE {
	return unsafe.Slice((*hca.SGE)(unsafe.Pointer(at)), n)
}

func TestRecvFillStopsAtTheRoomThatIsLeft(t *testing.T) {
	recv := newReceiver(3, 1)
	defer recv.free()
	if n, err := recv.fill(make([]hca.RecvWR, 4)); n != 3 || err != nil {
		t.Errorf("%d receives, %v, want 3", n, err)
	}
	if n, err := recv.fill(nil); n != 0 || err != nil {
		t.Errorf("%d of no receives, %v", n, err)
	}
}

func TestRecvFill(t *testing.T) {
	s := newReceiver(4, 2)
	defer s.free()
	n, err := s.fill([]hca.RecvWR{{ID: 5, SGList: []hca.SGE{sge2}}, {ID: 6, SGList: []hca.SGE{sge1, sge2, sge1}}})
	if n != 1 || !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("%d filled, %v, want 1 and %v", n, err, hca.ErrInvalid)
	}
	if wr := s.wrs[0]; wr.wr_id != 5 || wr.num_sge != 1 || listOf(wr.sg_list, 1)[0] != sge2 {
		t.Errorf("request is wrong: %+v", wr)
	}
}

// A queue that refuses posts in its state accepts nothing of the batch.
func TestSideGate(t *testing.T) {
	s := side[hca.RecvWR]{verb: verbPostRecv}
	for b, open := range map[hca.QueueBehaviour]bool{
		hca.QueueRefuses: false, hca.QueueHolds: true, hca.QueueRuns: true, hca.QueueFlushes: true,
	} {
		s.gate(b)
		if n, err := s.postAll(nil, 1); n != 0 || (err == nil) != open || !open && !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%v: %d, %v, want it open %v", b, n, err, open)
		}
	}
}

func TestRecvFillDoesNotAllocate(t *testing.T) {
	recv := newReceiver(2, 2)
	defer recv.free()
	recvs := []hca.RecvWR{{SGList: []hca.SGE{sge1}}}
	if n := testing.AllocsPerRun(100, func() { _, _ = recv.fill(recvs) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
