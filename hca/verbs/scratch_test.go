//go:build cgo && linux

package verbs

import (
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"ipoibd/hca"
)

// liveAH returns a handle that the library did not create.
func liveAH(pd *PD) *AH {
	a := &AH{pd: pd}
	store(&a.ah)
	return a
}

// store stores a pointer to memory that is never freed, so that C may keep it.
func store[T any](p *atomic.Pointer[T]) { p.Store(&array[T](1)[0]) }

func sendTo(id uint64, ah hca.AH, list ...hca.SGE) hca.SendWR {
	return hca.SendWR{ID: id, SGList: list, UD: hca.UDDest{AH: ah, QPN: 0x22, QKey: 0xb1b}}
}

var (
	sge1 = hca.SGE{Addr: 1 << 40, Length: 100, LKey: 7}
	sge2 = hca.SGE{Addr: 2 << 40, Length: 200, LKey: 8}
)

// listOf returns a list as C sees it.
func listOf[S any](at *S, n int) []hca.SGE {
	return unsafe.Slice((*hca.SGE)(unsafe.Pointer(at)), n)
}

func TestSendFill(t *testing.T) {
	q := &QP{pd: &PD{dev: &Device{attr: hca.DeviceAttr{IPCsum: true}}}}
	s := newSendScratch(4, 2)
	defer s.free()
	ah := liveAH(q.pd)
	second := sendTo(1<<63, ah, sge1, sge2)
	second.Flags = hca.SendSignaled | hca.SendSolicited | hca.SendIPCsum
	n, err := s.fill([]hca.SendWR{sendTo(1, ah), second}, q)
	if n != 2 || err != nil {
		t.Fatalf("%d filled, %v, want 2", n, err)
	}
	if wr := s.wrs[0]; wr.wr_id != 1 || wr.num_sge != 0 || wr.opcode != 2 || wr.send_flags != 0 {
		t.Errorf("first request is wrong: %+v", wr)
	}
	if wr := s.wrs[1]; wr.wr_id != 1<<63 || wr.num_sge != 2 || wr.opcode != 2 || wr.send_flags != 1<<1|1<<2|1<<4 {
		t.Errorf("second request is wrong: %+v", wr)
	}
	if got := listOf(s.wrs[1].sg_list, 2); got[0] != sge1 || got[1] != sge2 {
		t.Errorf("list %+v, want both pieces", got)
	}
	ud := (*cUD)(unsafe.Pointer(&s.wrs[1].wr))
	if ud.ah != ah.ah.Load() || ud.remote_qpn != 0x22 || ud.remote_qkey != 0xb1b {
		t.Errorf("destination is wrong: %+v", ud)
	}
}

// A controlled Q_Key selects the QP's own Q_Key, whatever its other bits are.
func TestSendFillControlledQKey(t *testing.T) {
	q := &QP{pd: &PD{}}
	q.qkey.Store(0x1234)
	for key, want := range map[hca.QKey]uint32{0xb1b: 0xb1b, hca.QKeyControlled: 0x1234, hca.QKeyControlled | 5: 0x1234} {
		if got := uint32(q.keyOf(key)); got != want {
			t.Errorf("%#x: %#x, want %#x", key, got, want)
		}
	}
}

// The requests before one that must not be posted are filled in.
func TestSendFillRefuses(t *testing.T) {
	q := &QP{pd: &PD{dev: &Device{}}} // without IPCsum
	s := newSendScratch(4, 2)
	defer s.free()
	ah, closed := liveAH(q.pd), &AH{pd: q.pd}
	large, unchecked := sendTo(2, ah), sendTo(2, ah)
	large.LSO = hca.LSO{Header: make([]byte, 44), MSS: 1000}
	unchecked.Flags = hca.SendIPCsum
	for what, bad := range map[string]hca.SendWR{
		"large send":        large,
		"no checksums":      unchecked,
		"list too long":     sendTo(2, ah, sge1, sge1, sge1),
		"no handle":         sendTo(2, nil),
		"closed handle":     sendTo(2, closed),
		"another domain":    sendTo(2, liveAH(&PD{})),
		"a nil of a handle": sendTo(2, (*AH)(nil)),
	} {
		n, err := s.fill([]hca.SendWR{sendTo(1, ah), bad, sendTo(3, ah)}, q)
		if n != 1 || !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %d filled, %v, want 1 and %v", what, n, err, hca.ErrInvalid)
		}
	}
}

func TestFillStopsAtTheRoomThatIsLeft(t *testing.T) {
	q := &QP{pd: &PD{}}
	send, recv := newSendScratch(3, 1), newRecvScratch(3, 1)
	defer send.free()
	defer recv.free()
	ah := liveAH(q.pd)
	if n, err := send.fill([]hca.SendWR{sendTo(1, ah), sendTo(2, ah), sendTo(3, ah), sendTo(4, nil)}, q); n != 3 || err != nil {
		t.Errorf("%d sends, %v, want 3", n, err)
	}
	if n, err := recv.fill(make([]hca.RecvWR, 4)); n != 3 || err != nil {
		t.Errorf("%d receives, %v, want 3", n, err)
	}
	if n, err := recv.fill(nil); n != 0 || err != nil {
		t.Errorf("%d of no receives, %v", n, err)
	}
}

func TestRecvFill(t *testing.T) {
	s := newRecvScratch(4, 2)
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

func TestFillDoesNotAllocate(t *testing.T) {
	q := &QP{pd: &PD{}}
	send, recv := newSendScratch(2, 2), newRecvScratch(2, 2)
	defer send.free()
	defer recv.free()
	ah := liveAH(q.pd)
	sends := []hca.SendWR{sendTo(1, ah, sge1), sendTo(2, ah, sge1, sge2)}
	recvs := []hca.RecvWR{{SGList: []hca.SGE{sge1}}}
	if n := testing.AllocsPerRun(100, func() {
		_, _ = send.fill(sends, q)
		_, _ = recv.fill(recvs)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
