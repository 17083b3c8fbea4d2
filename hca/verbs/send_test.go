//go:build cgo && linux

package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/segment"
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

// sendRig is a sender without a device.
type sendRig struct {
	*sender
	t  testing.TB
	ah *AH
	mr *MR // the payloads
}

// newSendRig returns a sender with registered memory, on a device that cuts large sends.
func newSendRig(t testing.TB, depth, sges int) *sendRig {
	t.Helper()
	pd := &PD{dev: &Device{attr: hca.DeviceAttr{IPCsum: true, MaxTSO: maxTSO, USO: true}}}
	r := &sendRig{sender: &sender{}, t: t, ah: liveAH(pd), mr: testMR(pd, 99, 1<<17)}
	q := &QP{pd: pd, spec: hca.QPSpec{SendWRs: depth, SendSGEs: sges, SignalAll: true}}
	r.setUp(q, testMR(pd, 1, 1<<20))
	t.Cleanup(r.freeRequests)
	return r
}

// testMR returns memory that no device knows.
func testMR(pd *PD, key uint32, size int) *MR {
	m := &MR{pd: pd, mem: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(array[uint64](size/8)))), size), lkey: key}
	pd.regions.add(m)
	return m
}

// filled translates sends, all of which must be translated.
func (r *sendRig) filled(wrs ...hca.SendWR) {
	r.t.Helper()
	if n, err := r.fill(wrs); n != len(wrs) || err != nil {
		r.t.Fatalf("%d of %d sends, %v", n, len(wrs), err)
	}
	r.book.post()
}

// message returns the bytes that request i sends.
func (r *sendRig) message(i int) (msg []byte) {
	wr := &r.wrs[i]
	for _, e := range listOf(wr.sg_list, int(wr.num_sge)) {
		b := r.q.pd.regions.find(e)
		if b == nil {
			r.t.Fatalf("request %d: %+v is not registered", i, e)
		}
		msg = append(msg, b...)
	}
	return msg
}

// payload writes n bytes to the memory and returns their entry.
func (r *sendRig) payload(n int) hca.SGE {
	for i := range n {
		r.mr.mem[i] = byte(i*13 + n)
	}
	return r.mr.SGE(0, n)
}

func TestSendFill(t *testing.T) {
	r := newSendRig(t, 4, 2)
	r.q.spec.SignalAll = false
	second := sendTo(1<<63, r.ah, sge1, sge2)
	second.Flags = hca.SendSignaled | hca.SendSolicited
	r.filled(sendTo(1, r.ah), second)
	if wr := r.wrs[0]; wr.num_sge != 0 || wr.opcode != 2 || wr.send_flags != 0 {
		t.Errorf("first request is wrong: %+v", wr)
	}
	if wr := r.wrs[1]; wr.wr_id != r.wrs[0].wr_id+1 || wr.num_sge != 2 || wr.opcode != 2 || wr.send_flags != 1<<1|1<<2 {
		t.Errorf("second request is wrong: %+v", wr)
	}
	if got := listOf(r.wrs[1].sg_list, 2); got[0] != sge1 || got[1] != sge2 {
		t.Errorf("list %+v, want both pieces", got)
	}
	ud := (*cUD)(unsafe.Pointer(&r.wrs[1].wr))
	if ud.ah != r.ah.ah.Load() || ud.remote_qpn != 0x22 || ud.remote_qkey != 0xb1b {
		t.Errorf("destination is wrong: %+v", ud)
	}
	if got := completed(r.book, wc(uint64(r.wrs[0].wr_id), 0), wc(uint64(r.wrs[1].wr_id), 0)); !slices.Equal(got, []uint64{1 << 63}) {
		t.Errorf("completions of %#x, want only that of the signaled send", got)
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

// large returns a large send of n bytes.
func (r *sendRig) large(id uint64, n, mss int) hca.SendWR {
	wr := sendTo(id, r.ah, r.payload(n))
	wr.LSO = hca.LSO{Header: hcatest.TCPHeader(), MSS: mss}
	return wr
}

// The requests before one that must not be posted are filled in.
func TestSendFillRefuses(t *testing.T) {
	r := newSendRig(t, 8, 2)
	tooLong := r.large(2, 1000, 500)
	tooLong.SGList = []hca.SGE{r.mr.SGE(0, maxTSO), r.mr.SGE(0, 1)}
	ended := r.large(2, 1000, 500)
	ended.LSO.Header = ended.LSO.Header[:20]
	for what, bad := range map[string]hca.SendWR{
		"too many segments": r.large(2, 901, 100),
		"too large":         tooLong,
		"half a header":     ended,
		"list too long":     sendTo(2, r.ah, sge1, sge1, sge1),
		"no handle":         sendTo(2, nil),
		"closed handle":     sendTo(2, &AH{pd: r.q.pd}),
		"another domain":    sendTo(2, liveAH(&PD{})),
		"a nil of a handle": sendTo(2, (*AH)(nil)),
	} {
		n, err := r.fill([]hca.SendWR{sendTo(1, r.ah), bad, sendTo(3, r.ah)})
		if n != 1 || r.used != 1 || !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %d filled, %v, want 1 and %v", what, n, err, hca.ErrInvalid)
		}
		r.book.post()
		r.book.drop()
	}
}

// A large send has up to hca.MaxLSOSegments segments, in a queue that has room for more.
func TestSendFillTheMostSegments(t *testing.T) {
	r := newSendRig(t, 2*hca.MaxLSOSegments, 2)
	n, err := r.fill([]hca.SendWR{r.large(1, hca.MaxLSOSegments*20, 20), r.large(2, hca.MaxLSOSegments*20+1, 20)})
	if n != 1 || r.used != hca.MaxLSOSegments || err != nil {
		t.Errorf("%d filled with %d requests, %v; want one with %d", n, r.used, err, hca.MaxLSOSegments)
	}
	r.book.post()
	if n, err = r.fill([]hca.SendWR{r.large(2, hca.MaxLSOSegments*20+1, 20)}); n != 0 || !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("a segment more: %d filled, %v, want %v", n, err, hca.ErrInvalid)
	}
}

// A device whose lists have no entry for headers refuses what needs one.
func TestSendFillWithoutHeaders(t *testing.T) {
	r := newSendRig(t, 8, 2)
	r.q.pd.dev.attr = hca.DeviceAttr{}
	r.setUp(r.q, nil)
	csum := sendTo(2, r.ah, r.payload(100))
	csum.Flags = hca.SendIPCsum
	for what, bad := range map[string]hca.SendWR{"large send": r.large(2, 1000, 500), "checksum": csum} {
		if n, err := r.fill([]hca.SendWR{bad}); n != 0 || !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %d filled, %v, want %v", what, n, err, hca.ErrInvalid)
		}
	}
}

// A large send needs room for all its segments. If there is too little, nothing of it is
// posted, and the send before it completes, so that room comes.
func TestSendFillRoom(t *testing.T) {
	r := newSendRig(t, 10, 2)
	r.q.spec.SignalAll = false
	n, err := r.fill([]hca.SendWR{r.large(1, 500, 100), sendTo(2, r.ah), r.large(3, 500, 100)})
	if n != 2 || r.used != 6 || !errors.Is(err, hca.ErrQueueFull) {
		t.Fatalf("%d sends, %d requests, %v, want 2, 6 and %v", n, r.used, err, hca.ErrQueueFull)
	}
	for i, wr := range r.wrs[:6] {
		if signaled := wr.send_flags&2 != 0; signaled != (i >= 4) {
			t.Errorf("request %d: signaled is %v", i, signaled)
		}
	}
	r.book.post()
	if got := completed(r.book, wc(uint64(r.wrs[4].wr_id), 0), wc(uint64(r.wrs[5].wr_id), 0)); got != nil {
		t.Errorf("completions of %d, want none", got)
	}
	r.filled(r.large(3, 500, 100))
}

// Each segment is a message with complete headers, in requests of the queue's own.
func TestSendFillCuts(t *testing.T) {
	for _, list := range []func(r *sendRig, n int) []hca.SGE{
		func(r *sendRig, n int) []hca.SGE { return []hca.SGE{r.payload(n)} },
		func(r *sendRig, n int) []hca.SGE {
			r.payload(n)
			return []hca.SGE{r.mr.SGE(0, 333), r.mr.SGE(333, 0), r.mr.SGE(333, n-333)}
		},
	} {
		r := newSendRig(t, 64, 3)
		const n, mss = 5000, 700
		wr := r.large(5, n, mss)
		wr.SGList = list(r, n)
		r.filled(sendTo(1, r.ah), wr)
		var plan segment.Plan
		if err := plan.Cut(wr.LSO.Header, hca.EncapLen, n, mss); err != nil {
			t.Fatal(err)
		}
		if r.used != 1+plan.Segments() {
			t.Fatalf("%d requests, want %d", r.used, 1+plan.Segments())
		}
		for i := range plan.Segments() {
			off, n := plan.Payload(i)
			var sum segment.Sum
			sum.Add(r.mr.mem[off : off+n])
			want := make([]byte, plan.HeaderLen(), plan.HeaderLen()+n)
			plan.Put(want, i, sum)
			want = append(want, r.mr.mem[off:off+n]...)
			if got := r.message(1 + i); !bytes.Equal(got, want) {
				t.Errorf("segment %d:\n%x, want\n%x", i, got, want)
			}
			if r.wrs[1+i].send_flags&2 != 0 != (i == plan.Segments()-1) {
				t.Errorf("segment %d of %d: flags %#x", i, plan.Segments(), r.wrs[1+i].send_flags)
			}
			for _, e := range listOf(r.wrs[1+i].sg_list, int(r.wrs[1+i].num_sge)) {
				if e.Length == 0 {
					t.Errorf("segment %d has an empty entry", i)
				}
			}
		}
	}
}

// Requests for the payload are made even if it is no memory of this domain: the device
// refuses them.
func TestSendFillCutsForeignMemory(t *testing.T) {
	r := newSendRig(t, 8, 2)
	wr := r.large(5, 1000, 500)
	for what, e := range map[string]hca.SGE{
		"unknown key": {Addr: wr.SGList[0].Addr, Length: 1000, LKey: 12345},
		"past its end": {
			Addr: wr.SGList[0].Addr + uint64(len(r.mr.mem)) - 999, Length: 1000, LKey: wr.SGList[0].LKey,
		},
		"before it": {Addr: wr.SGList[0].Addr - 1, Length: 1000, LKey: wr.SGList[0].LKey},
	} {
		wr.SGList = []hca.SGE{e}
		r.filled(wr)
		got := listOf(r.wrs[1].sg_list, 2)[1]
		if want := (hca.SGE{Addr: e.Addr + 500, Length: 500, LKey: e.LKey}); r.used != 2 || got != want {
			t.Errorf("%s: %d requests, the second for %+v, want %+v", what, r.used, got, want)
		}
		r.book.drop()
	}
}

// A device that fills in checksums does so for IPv4. Those of IPv6, and of all messages on
// other devices, are filled in here, in a copy of the headers.
func TestSendFillChecksum(t *testing.T) {
	const ipCsum = 1 << 4 // IBV_SEND_IP_CSUM
	v4 := append(hcatest.TCPHeader(), bytes.Repeat([]byte{3}, 51)...)
	binary.BigEndian.PutUint16(v4[hca.EncapLen+2:], uint16(len(v4)-hca.EncapLen))
	v6 := append([]byte{0x86, 0xdd, 0, 0, 0x60, 0, 0, 0, 0, 9, 17, 64}, make([]byte, 32)...)
	v6 = append(v6, 1, 2, 3, 4, 0, 9, 0, 0, 'x', 'p', 'a', 'd') // three bytes follow the packet
	other := []byte("this is no packet")
	for _, tt := range []struct {
		name   string
		device bool // fills in checksums
		msg    []byte
		flag   bool
		copied bool
	}{
		{"IPv4", false, v4, false, true},
		{"IPv6", false, v6, false, true},
		{"not IP", false, other, false, false},
		{"IPv4, by the device", true, v4, true, false},
		{"IPv6, not by the device", true, v6, false, true},
		{"not IP, on a device that can", true, other, false, false},
		{"nothing", true, nil, false, false},
	} {
		for cut := range len(tt.msg) + 1 {
			r := newSendRig(t, 8, 2)
			r.q.pd.dev.fillsCsum = tt.device
			copy(r.mr.mem, tt.msg[:cut])
			copy(r.mr.mem[4096:], tt.msg[cut:])
			wr := sendTo(1, r.ah, r.mr.SGE(0, cut), r.mr.SGE(4096, len(tt.msg)-cut))
			wr.Flags = hca.SendIPCsum
			r.filled(wr)
			want := slices.Clone(tt.msg)
			var plan segment.Plan
			if tt.copied {
				if err := plan.Whole(want, hca.EncapLen, len(want)); err != nil {
					t.Fatal(err)
				}
				var sum segment.Sum
				_, n := plan.Payload(0)
				sum.Add(want[plan.HeaderLen():][:n])
				plan.Put(want, 0, sum)
			}
			if got := r.message(0); !bytes.Equal(got, want) {
				t.Fatalf("%s, in pieces of %d and %d bytes:\n%x, want\n%x", tt.name, cut, len(tt.msg)-cut, got, want)
			}
			if flag := r.wrs[0].send_flags&ipCsum != 0; flag != tt.flag {
				t.Errorf("%s: the flag is %v", tt.name, flag)
			}
			if !bytes.Equal(r.mr.mem[:cut], tt.msg[:cut]) || !bytes.Equal(r.mr.mem[4096:][:len(tt.msg)-cut], tt.msg[cut:]) {
				t.Fatalf("%s: the send changed its memory", tt.name)
			}
		}
	}
}

// A batch has requests for one call of libibverbs, but a large send is not divided.
func TestSendFillStopsAfterABatch(t *testing.T) {
	r := newSendRig(t, 512, 1)
	wrs := make([]hca.SendWR, 0, 200)
	for i := range cap(wrs) {
		wrs = append(wrs, sendTo(uint64(i), r.ah))
	}
	if n, err := r.fill(wrs); n != maxPost || err != nil {
		t.Errorf("%d sends, %v, want %d", n, err, maxPost)
	}
	r.book.post()
	wrs[1] = r.large(1, 300, 1)
	if n, err := r.fill(wrs); n != 2 || r.used != 301 || err != nil {
		t.Errorf("%d sends, %d requests, %v, want 2 and 301", n, r.used, err)
	}
}

func TestSendFillDoesNotAllocate(t *testing.T) {
	r := newSendRig(t, 64, 2)
	csum := sendTo(3, r.ah, r.mr.SGE(0, 80), r.mr.SGE(80, 200))
	copy(r.mr.mem, hcatest.TCPHeader())
	csum.Flags = hca.SendIPCsum
	wrs := []hca.SendWR{sendTo(1, r.ah, sge1), sendTo(2, r.ah, sge1, sge2), r.large(4, 30000, 1400), csum}
	if n := testing.AllocsPerRun(100, func() {
		r.filled(wrs...)
		r.book.drop()
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkSendFill translates large sends, which includes the checksums. The physical bound
// is reading the payload once.
func BenchmarkSendFill(b *testing.B) {
	for _, mss := range []int{964, 1988, 4036} {
		b.Run(fmt.Sprint("mss=", mss), func(b *testing.B) {
			r := newSendRig(b, 512, 1)
			wrs := []hca.SendWR{r.large(1, 64000, mss)}
			b.SetBytes(64000)
			for b.Loop() {
				r.filled(wrs...)
				r.book.drop()
			}
		})
	}
}
