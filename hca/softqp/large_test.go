package softqp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/join"
	"ipoibd/hca/roce"
	"ipoibd/hca/segment"
)

// segments cuts a TCP frame of n bytes of payload into messages.
func segments(t testing.TB, port uint16, seq uint32, id uint16, n, mss int, flags uint8) (out [][]byte) {
	t.Helper()
	h := bytes.Clone(tcpHeader)
	binary.BigEndian.PutUint16(h[4+4:], id)
	binary.BigEndian.PutUint16(h[24:], port)
	binary.BigEndian.PutUint32(h[24+4:], seq)
	h[24+13] = flags
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(seq) + byte(i*7+i>>8)
	}
	return cutLarge(t, h, payload, mss)
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

// received returns the messages of the completions, the joined ones cut again.
func (r *rig) received(size int) (out [][]byte, large int) {
	r.Helper()
	for _, wc := range r.RecvDone() {
		msg := r.rx[int(wc.ID)*size:][hca.GRHLen:wc.ByteLen]
		if wc.LRO.Segments == 0 {
			out = append(out, bytes.Clone(msg))
			continue
		}
		large++
		var p join.Packet
		p.Parse(msg[hca.EncapLen:], false, true, 0)
		if p.Kind != join.Joinable || wc.Flags&hca.WCFlagIPCsumOK == 0 {
			r.Fatalf("large receive of kind %d, flags %v", p.Kind, wc.Flags)
		}
		head := hca.EncapLen + p.Payload
		cut := cutLarge(r, msg[:head], msg[head:], wc.LRO.MSS)
		if len(cut) != wc.LRO.Segments {
			r.Fatalf("%d segments, completion says %d", len(cut), wc.LRO.Segments)
		}
		out = append(out, cut...)
	}
	return out, large
}

func (r *rig) deliver(msg []byte, change func(*Inbound)) Reason {
	in := inbound(string(msg))
	in.UDPLen = roce.HeaderLen + len(msg) + roce.ICRCLen
	if change != nil {
		change(in)
	}
	return r.Deliver(r.env, in)
}

// The segments of a frame become one receive, and what cannot be joined starts the next one.
func TestSegmentsAreJoined(t *testing.T) {
	const size = 0x1400
	train := segments(t, 1000, 1, 0, 5*800+200, 800, 0x10)
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

// Whatever arrives, cutting the large receives yields the messages that arrived, in order.
func TestLargeReceivesAreWhatArrived(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{1024, 4096, 8192, 16384}).Draw(rt, "size")
		r := lroRig(t, size)
		var want, got [][]byte
		take := func() {
			out, _ := r.received(size)
			got = append(got, out...)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "frames") {
			mss := rapid.IntRange(1, 900).Draw(rt, "mss")
			train := segments(t, uint16(rapid.IntRange(1, 2).Draw(rt, "port")), rapid.Uint32().Draw(rt, "seq"), rapid.Uint16().Draw(rt, "id"),
				min(rapid.IntRange(1, 4000).Draw(rt, "n"), 60*mss), mss, rapid.SampledFrom([]uint8{0x10, 0x18, 0x11, 0x50}).Draw(rt, "flags"))
			for _, msg := range train {
				if rapid.IntRange(0, 20).Draw(rt, "damage") == 0 {
					msg[rapid.IntRange(4, len(msg)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				}
				if r.QP.recv.queue.len() < 2 || rapid.IntRange(0, 15).Draw(rt, "done") == 0 {
					take()
					r = lroRig(t, size)
				}
				if reason := r.deliver(msg, nil); reason != Passed {
					rt.Fatalf("%v", reason)
				}
				want = append(want, msg)
			}
		}
		take()
		if len(got) != len(want) {
			rt.Fatalf("%d messages, want %d", len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				rt.Fatalf("message %d:\n% x, want\n% x", i, got[i], want[i])
			}
		}
	})
}
