package softqp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/join"
	"ipoibd/hca/roce"
	"ipoibd/hca/segment"
)

// flow is a TCP or UDP flow whose packets are cut into messages.
type flow struct {
	v6, udp bool
	port    uint16
	seq     uint32
	id      uint16
	sameID  bool // of all segments, with DF
	flags   uint8
}

// segments cuts a packet with n bytes of payload into messages.
func (f flow) segments(t testing.TB, n, mss int) (out [][]byte) {
	t.Helper()
	h := bytes.Clone(tcpHeader[:4+20])
	binary.BigEndian.PutUint16(h[4+4:], f.id)
	if f.v6 {
		h = append([]byte{0x86, 0xdd, 0, 0, 0x60, 1, 2, 3, 0, 0, join.TCP, 64}, bytes.Repeat([]byte{0xfd, 1}, 16)...)
	}
	l4 := len(h)
	if f.udp {
		h[map[bool]int{false: 4 + 9, true: 4 + 6}[f.v6]] = join.UDP
		h = append(h, 0, 0, 0, 80, 0, 0, 0, 0)
	} else {
		h = append(h, tcpHeader[24:]...)
		binary.BigEndian.PutUint32(h[l4+4:], f.seq)
		h[l4+13] = f.flags
	}
	binary.BigEndian.PutUint16(h[l4:], f.port)
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(f.seq) + byte(i*7+i>>8)
	}
	out = cutLarge(t, h, payload, mss)
	for i, msg := range out {
		if ip := msg[4 : 4+20]; f.sameID && !f.v6 {
			binary.BigEndian.PutUint16(ip[4:], f.id)
			binary.BigEndian.PutUint16(ip[10:], 0)
			binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip, 0))
			out[i] = msg
		}
	}
	return out
}

// cutLarge cuts a message into segments.
func cutLarge(t testing.TB, header, payload []byte, mss int) (out [][]byte) {
	t.Helper()
	var p segment.Plan
	if err := p.Cut(header, hca.EncapLen, len(payload), mss); err != nil {
		t.Fatal(err)
	}
	for i := range p.Segments() {
		off, n := p.Payload(i)
		var sum segment.Sum
		sum.Add(payload[off : off+n])
		msg := make([]byte, p.HeaderLen(), p.HeaderLen()+n)
		p.Put(msg, i, sum)
		out = append(out, append(msg, payload[off:off+n]...))
	}
	return out
}

// lroRig is a rig whose receives hold size bytes each.
func lroRig(t testing.TB, size int) *rig {
	spec := defaultSpec()
	spec.LRO, spec.LROUDP, spec.RecvWRs = true, true, 64
	r := newRig(t, spec)
	r.up(hca.QPRTS)
	for i := range len(r.rx) / size {
		r.lroPost(i, size)
	}
	return r
}

func (r *rig) lroPost(i, size int) {
	r.Helper()
	if err := r.PostRecv(&hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{r.rxSGE(i*size, size)}}); err != nil {
		r.Fatal(err)
	}
}

// received returns the messages of the completions, the joined ones cut again. It compares them
// with those that arrived, and returns how many are in each completion.
func (r *rig) received(size int, arrived [][]byte) (sizes []int) {
	r.Helper()
	for _, wc := range r.RecvDone() {
		msg := r.rx[int(wc.ID)*size:][hca.GRHLen:wc.ByteLen]
		got := [][]byte{msg}
		if wc.LRO.Segments != 0 {
			var p join.Packet
			p.Parse(msg[hca.EncapLen:], msg[0] == 0x86, true, 0)
			if p.Kind != join.Joinable || wc.Flags&hca.WCFlagIPCsumOK == 0 || wc.LRO.Segments < 2 {
				r.Fatalf("large receive of kind %d: %+v", p.Kind, wc)
			}
			head := hca.EncapLen + p.Payload
			if got = cutLarge(r, msg[:head], msg[head:], wc.LRO.MSS); len(got) != wc.LRO.Segments || len(got) > len(arrived) {
				r.Fatalf("%d segments, completion %+v, %d messages are left", len(got), wc, len(arrived))
			}
		}
		for i, msg := range got {
			want := bytes.Clone(arrived[i])
			if i > 0 && want[0] == 8 && bytes.Equal(want[4+4:4+6], arrived[0][4+4:4+6]) {
				copy(want[4+4:], msg[4+4:4+6]) // the same identification, with DF
				copy(want[4+10:], msg[4+10:4+12])
			}
			if !bytes.Equal(msg, want) {
				r.Fatalf("message %d of %d\n% x, want\n% x", i, len(got), msg, want)
			}
		}
		sizes, arrived = append(sizes, len(got)), arrived[len(got):]
	}
	if len(arrived) > 0 {
		r.Fatalf("%d messages are missing after %v", len(arrived), sizes)
	}
	return sizes
}

func (r *rig) deliver(msg []byte, change func(*Inbound)) Reason {
	in := inbound(string(msg))
	in.UDPLen = roce.HeaderLen + len(msg) + roce.ICRCLen
	if change != nil {
		change(in)
	}
	return r.Deliver(r.env, in)
}

// Each message goes to the receive that was posted last, whose memory is most likely cached.
// Without large receives, the receives are used in order.
func TestLargeReceivesAreUsedInReverse(t *testing.T) {
	for _, large := range []bool{true, false} {
		spec := defaultSpec()
		spec.LRO = large
		r := newRig(t, spec)
		r.up(hca.QPRTS)
		const size = 256
		for i := range 3 {
			r.lroPost(i, size)
		}
		r.deliver([]byte("first"), nil)
		r.lroPost(3, size)
		r.deliver([]byte("second"), nil)
		r.deliver([]byte("third"), nil)
		var got []uint64
		for _, wc := range r.RecvDone() {
			got = append(got, wc.ID)
		}
		want := []uint64{0, 1, 2}
		if large {
			want = []uint64{2, 3, 1}
		}
		if !slices.Equal(got, want) {
			t.Errorf("large receives %v: used %v, want %v", large, got, want)
		}
	}
}

// The segments of a frame become one receive, and what cannot be joined starts the next one.
func TestSegmentsAreJoined(t *testing.T) {
	const size = 0x1400
	train := flow{port: 1000, seq: 1, flags: 0x10}.segments(t, 5*800+200, 800)
	for name, c := range map[string]struct {
		spoil  func(i int, msg []byte)
		change func(i int, in *Inbound)
		want   []int // messages by completion
	}{
		"alike":            {nil, nil, []int{6}},
		"wrong checksum":   {func(i int, msg []byte) { msg[100] ^= byte(i / 3 % 2) }, nil, []int{3, 1, 1, 1}},
		"other sender":     {nil, func(i int, in *Inbound) { in.SrcQPN += hca.QPN(min(i, 1)) }, []int{1, 5}},
		"other address":    {nil, func(i int, in *Inbound) { in.Path.Src = []netip.Addr{peer4, own4}[i/4] }, []int{4, 2}},
		"congestion":       {nil, func(i int, in *Inbound) { in.TOS = uint8(i / 2) }, []int{2, 2, 2}},
		"hop limit":        {nil, func(i int, in *Inbound) { in.TTL = uint8(i/5) + 60 }, []int{5, 1}},
		"in pieces":        {nil, func(i int, in *Inbound) { in.Payload = [][]byte{in.Payload[0][:50], in.Payload[0][50:]} }, []int{1, 1, 1, 1, 1, 1}},
		"replicated":       {nil, func(i int, in *Inbound) { in.DestQPN = []hca.QPN{rigQPN, hca.QPNMulticast}[i%2] }, []int{1, 1, 1, 1, 1, 1}},
		"multicast header": {nil, func(i int, in *Inbound) { in.Path.Dst = group }, []int{1, 1, 1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := lroRig(t, size)
			var got []int
			for i, msg := range train {
				msg = bytes.Clone(msg)
				if c.spoil != nil {
					c.spoil(i, msg)
				}
				reason := r.deliver(msg, func(in *Inbound) {
					if c.change != nil {
						c.change(i, in)
					}
				})
				if reason == DropNoRecv {
					t.Fatal("no receive")
				}
			}
			for _, wc := range r.RecvDone() {
				got = append(got, max(1, wc.LRO.Segments))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("completions of %v messages, want %v", got, c.want)
			}
		})
	}
}

// Whatever arrives, cutting the large receives yields the messages that arrived, in order. Only
// the identification of datagrams with DF may differ, if they all had the same.
func TestLargeReceivesAreWhatArrived(t *testing.T) {
	largest := 0
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{1024, 4096, 8192, 16384}).Draw(rt, "size")
		r, arrived := lroRig(t, size), [][]byte(nil)
		take := func() {
			largest = max(largest, slices.Max(append(r.received(size, arrived), 0)))
			r, arrived = lroRig(t, size), nil
		}
		draw := func(name string) bool { return rapid.Bool().Draw(rt, name) }
		for range rapid.IntRange(1, 12).Draw(rt, "frames") {
			f := flow{
				v6: draw("IPv6"), udp: draw("UDP"), sameID: draw("same id"), flags: rapid.SampledFrom([]uint8{0x10, 0x18, 0x11, 0x50}).Draw(rt, "flags"),
				port: uint16(rapid.IntRange(1, 2).Draw(rt, "port")), seq: rapid.Uint32().Draw(rt, "seq"), id: rapid.Uint16().Draw(rt, "id"),
			}
			mss := rapid.IntRange(1, 900).Draw(rt, "mss")
			for _, msg := range f.segments(t, min(rapid.IntRange(1, 4000).Draw(rt, "n"), 60*mss), mss) {
				switch rapid.IntRange(0, 40).Draw(rt, "damage") {
				case 0:
					msg[rapid.IntRange(0, len(msg)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				case 1:
					msg = msg[:rapid.IntRange(0, len(msg)).Draw(rt, "length")]
				case 2:
					msg = append(msg, 0)
				}
				if r.QP.recv.queue.len() < 2 || rapid.IntRange(0, 15).Draw(rt, "done") == 0 {
					take()
				}
				if reason := r.deliver(msg, nil); reason != Passed {
					rt.Fatalf("%v", reason)
				}
				arrived = append(arrived, msg)
			}
		}
		take()
	})
	if largest < 5 {
		t.Errorf("at most %d messages were joined", largest)
	}
}

// Many tiny segments fill receives with 64 segments each.
func TestTinySegmentsFillReceives(t *testing.T) {
	const size = 1024
	r := lroRig(t, size)
	train := flow{port: 1, flags: 0x10}.segments(t, 1000, 1)
	for _, msg := range train {
		if reason := r.deliver(msg, nil); reason != Passed {
			t.Fatal(reason)
		}
	}
	want := append(slices.Repeat([]int{join.MaxSegments}, 1000/join.MaxSegments), 1000%join.MaxSegments)
	if got := r.received(size, train); !slices.Equal(got, want) {
		t.Errorf("messages by receive: %v, want %v", got, want)
	}
}

// A large packet of 65535 bytes, the longest one, fits into a receive.
func TestLargeReceiveHasAtMost64K(t *testing.T) {
	const size = 0x18000
	r := lroRig(t, rigMem)
	r.rx = make([]byte, size)
	r.env.Memory, r.rxLKey = r.env.Memory.With(Region{PD: rigPD, Base: rxBase, Mem: r.rx, Write: true})
	r.RecvDone()
	r.becomeRecv(hca.QPReset)
	r.becomeRecv(hca.QPRTS)
	if err := r.PostRecv(&hca.RecvWR{SGList: []hca.SGE{r.rxSGE(0, size)}}); err != nil {
		t.Fatal(err)
	}
	const mss = 2000
	train := flow{udp: true, port: 1}.segments(t, join.MaxBytes-20-8, mss)
	for _, msg := range train {
		if reason := r.deliver(msg, nil); reason != Passed {
			t.Fatal(reason)
		}
	}
	if got := r.received(0, train); !slices.Equal(got, []int{len(train)}) {
		t.Errorf("messages by receive: %v, want one of %d", got, len(train))
	}
}

// Moving to ERR completes the open receive with its messages, then flushes the others. RESET
// drops it.
func TestOpenLargeReceiveIsCompletedInERR(t *testing.T) {
	const size = 0x1000
	train := flow{port: 1, flags: 0x10}.segments(t, 2000, 500)
	for _, to := range []hca.QPState{hca.QPErr, hca.QPReset} {
		r := lroRig(t, size)
		for _, msg := range train {
			r.deliver(msg, nil)
		}
		if err := r.Modify(hca.QPAttr{State: to}, hca.AttrState, r.env); err != nil {
			t.Fatal(err)
		}
		wcs := r.RecvDone()
		if to == hca.QPReset {
			if len(wcs) != 0 || r.QP.recv.large.open {
				t.Errorf("completions after RESET: %+v", wcs)
			}
			continue
		}
		if len(wcs) != len(r.rx)/size || wcs[0].Status != hca.WCSuccess || wcs[0].LRO.Segments != len(train) || wcs[1].Status != hca.WCWRFlushErr {
			t.Errorf("completions in ERR: %+v", wcs)
		}
	}
}

// A receive that is too short for a message fails. The large receive before it is complete.
func TestFailingReceiveEndsALargeOne(t *testing.T) {
	const size = 0x1000
	r := lroRig(t, size)
	train := flow{port: 1, flags: 0x10}.segments(t, 2000, 500)
	for _, msg := range train {
		r.deliver(msg, nil)
	}
	if reason := r.deliver(make([]byte, size), nil); reason != FailRecvLength {
		t.Fatal(reason)
	}
	r.Settle()
	wcs := r.RecvDone()
	if len(wcs) != len(r.rx)/size || wcs[0].LRO.Segments != len(train) || wcs[1].Status != hca.WCLocLenErr || wcs[2].Status != hca.WCWRFlushErr {
		t.Errorf("completions %+v", wcs)
	}
}
