package coalesce

import (
	"bytes"
	"encoding/binary"
	"slices"

	"ipoibd/hca"
	"ipoibd/hca/join"
	"ipoibd/ud/vnet"
)

// tb is the part of testing.TB that rapid.T has too.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// joined joins frames, checks every property of the result, and returns how many inputs each
// frame of the output consists of.
func joined(t tb, c *Coalescer, frames [][]byte) (sizes []int) {
	t.Helper()
	before := make([][]byte, len(frames))
	for i, f := range frames {
		before[i] = bytes.Clone(f)
	}
	out := c.Join(frames, oneSender(frames))
	place := make([]int, len(frames))
	for i := range place {
		place[i] = -1
	}
	n := 0
	for k, vec := range out {
		inputs := c.Inputs(k)
		if len(inputs) != len(vec) || len(vec) == 0 {
			t.Fatalf("frame %d: %d slices of %d inputs", k, len(vec), len(inputs))
		}
		for j, i := range inputs {
			if place[i] != -1 {
				t.Fatalf("input %d is used twice", i)
			}
			place[i] = n
			n++
			requireAlias(t, vec[j], frames[i])
		}
		sizes = append(sizes, len(inputs))
		requireSame(t, k, slices.Concat(vec...), inputs, before)
	}
	if n != len(frames) {
		t.Fatalf("%d of %d inputs are used", n, len(frames))
	}
	for i := range frames {
		for j := range i {
			if mayBeOneFlow(before[j], before[i]) && place[j] > place[i] {
				t.Fatalf("input %d is behind input %d\n% x\n% x", j, i, before[j], before[i])
			}
		}
	}
	return sizes
}

// requireAlias checks that a slice is a part of a frame, not a copy.
func requireAlias(t tb, slice, frame []byte) {
	t.Helper()
	if len(slice) == 0 && len(frame) == 0 {
		return
	}
	for at := range frame {
		if &frame[at] == &slice[0] {
			if len(slice) > len(frame)-at {
				t.Fatalf("a slice of %d bytes at byte %d of %d", len(slice), at, len(frame))
			}
			return
		}
	}
	t.Fatalf("a slice is not a part of its frame")
}

// requireSame checks that the frame, segmented again, equals its inputs, and its limits.
func requireSame(t tb, k int, frame []byte, inputs []int, before [][]byte) {
	t.Helper()
	if len(inputs) == 1 {
		if !bytes.Equal(frame, before[inputs[0]]) {
			t.Fatalf("frame %d, which is one input:\n got % x\nwant % x", k, frame, before[inputs[0]])
		}
		return
	}
	h, err := vnet.Parse(frame)
	headers, checkErr := h.Check(frame[10:])
	if err != nil || checkErr != nil || headers != int(h.HdrLen) || h.Flags != vnet.NeedsCsum {
		t.Fatalf("frame %d: %+v, %v, %v; headers of %d bytes", k, h, err, checkErr, headers)
	}
	if len(frame) > 24+join.MaxBytes || len(inputs) > join.MaxSegments {
		t.Fatalf("frame %d: %d bytes of %d segments", k, len(frame), len(inputs))
	}
	sum := binary.BigEndian.Uint16(frame[10+int(h.CsumStart)+int(h.CsumOffset):])
	if want := pseudo(frame[10:], int(h.CsumStart)); sum != want {
		t.Fatalf("frame %d: partial checksum %#x, want %#x", k, sum, want)
	}
	if frame[22] == 8 && naive(frame[24:44], 0) != 0xffff {
		t.Fatalf("frame %d: the IPv4 header % x has a wrong checksum", k, frame[24:44])
	}
	pieces := cut(frame)
	if len(pieces) != len(inputs) {
		t.Fatalf("frame %d: %d segments of %d inputs", k, len(pieces), len(inputs))
	}
	for j, i := range inputs {
		got, want := plain(pieces[j]), plain(before[i][10:])
		if !bytes.Equal(got, want) {
			t.Fatalf("frame %d, segment %d, input %d:\n got % x\nwant % x", k, j, i, got, want)
		}
	}
}

// pseudo returns the sum of the pseudo-header of an Ethernet frame.
func pseudo(frame []byte, transport int) uint16 {
	addrs, proto := frame[26:34], frame[23]
	if frame[12] == 0x86 {
		addrs, proto = frame[22:54], frame[20]
	}
	n := len(frame) - transport
	return naive(addrs, naive([]byte{0, proto, byte(n >> 8), byte(n)}, 0))
}

// plain returns an Ethernet frame without padding, and without the identification of
// an IPv4 packet with DF, which has no meaning.
func plain(frame []byte) []byte {
	f := bytes.Clone(frame)
	if f[12] == 0x86 {
		return f[:54+int(binary.BigEndian.Uint16(f[18:]))]
	}
	f = f[:14+int(binary.BigEndian.Uint16(f[16:]))]
	if f[20]&0x40 != 0 {
		clear(f[18:20])
		clear(f[24:26])
	}
	return f
}

// mayBeOneFlow reports whether two frames must keep their order: both are IP packets to a host
// with the same addresses, and their protocols and ports are the same, as far as they are known.
func mayBeOneFlow(a, b []byte) bool {
	p, q := flowOf(a), flowOf(b)
	return p.addrs != "" && p.addrs == q.addrs && (p.proto == q.proto || p.proto == 0 || q.proto == 0) &&
		(p.ports == q.ports || p.ports == "" || q.ports == "")
}

type flow struct {
	addrs string // empty: no IP packet to a host
	proto uint8  // 0: unknown
	ports string // empty: unknown
}

func flowOf(f []byte) (out flow) {
	if len(f) < 44 || f[10]&1 != 0 {
		return flow{}
	}
	typ, f := binary.BigEndian.Uint16(f[22:]), f[24:]
	switch {
	case typ == 0x0800 && f[0]>>4 == 4:
		out.addrs, out.proto = string(f[12:20]), f[9]
		header := int(f[0]&15) * 4
		if f[6]&0x3f == 0 && f[7] == 0 && header >= 20 && len(f) >= header+4 && (f[9] == 6 || f[9] == 17) {
			out.ports = string(f[header : header+4])
		}
	case typ == 0x86dd && f[0]>>4 == 6 && len(f) >= 40:
		out.addrs = string(f[8:40])
		if f[6] == 6 || f[6] == 17 || f[6] == 58 {
			out.proto = f[6]
		}
		if out.proto != 58 && out.proto != 0 && len(f) >= 44 {
			out.ports = string(f[40:44])
		}
	}
	return out
}

// oneSender returns the senders of frames that all come from the same one.
func oneSender(frames [][]byte) []hca.UDSource { return make([]hca.UDSource, len(frames)) }
