package join

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ipoibd/hca/checksum"
	"ipoibd/hca/segment"
)

// cut cuts a large packet with package segment.
func cut(t testing.TB, large []byte, headers, mss int) (out [][]byte) {
	t.Helper()
	var plan segment.Plan
	if err := plan.Cut(large[:headers], 0, len(large)-headers, mss); err != nil {
		t.Fatalf("cut %x: %v", large[:headers], err)
	}
	for i := range plan.Segments() {
		off, n := plan.Payload(i)
		payload := large[headers+off:][:n]
		var sum segment.Sum
		sum.Add(payload)
		s := make([]byte, headers, headers+n)
		plan.Put(s, i, sum)
		out = append(out, append(s, payload...))
	}
	return out
}

// joinAll joins packets to the first while they fit, and returns the large packet.
func joinAll(packets [][]byte, v6 bool) (p Packet, run Run, large []byte) {
	var q Packet
	p.Parse(packets[0], v6, true, 0)
	large = bytes.Clone(packets[0])
	run.Start(&p)
	for _, c := range packets[1:] {
		q.Parse(c, v6, true, 0)
		if q.Kind != Joinable || !p.SameFlow(&q, large, c) || !run.Extend(&p, &q, large, c) {
			break
		}
		large = append(large, c[q.Payload:q.End]...)
	}
	if run.N > 1 {
		run.Enlarge(&p, large)
	}
	return p, run, large
}

// checkCut fails unless cutting a large packet yields the packets that were joined. Only the
// identification of datagrams with DF may differ, if they all had the same.
func checkCut(t testing.TB, p *Packet, run *Run, large []byte, packets [][]byte) {
	t.Helper()
	if len(large) > MaxBytes || run.N > MaxSegments || len(large) != p.Payload+run.Bytes {
		t.Fatalf("%d bytes of %+v", len(large), run)
	}
	var again Packet
	if again.Parse(large, p.IPv6, true, 0); again.Kind != Joinable || again.Payload != p.Payload || again.End != len(large) {
		t.Fatalf("the large packet parses as %+v", again)
	}
	segments := cut(t, large, p.Payload, p.Size())
	if len(segments) != run.N {
		t.Fatalf("cut into %d of %d", len(segments), run.N)
	}
	for i, got := range segments {
		want := bytes.Clone(packets[i])
		if run.fixedID {
			binary.BigEndian.PutUint16(want[ipv4ID:], binary.BigEndian.Uint16(got[ipv4ID:]))
			mend(want)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("segment %d of %d\n%x, was\n%x", i, run.N, got, want)
		}
	}
}

// mend corrects the checksums of a packet, if it has a plain header.
func mend(b []byte) {
	at, addrs, proto := ipv4Len, ipv4Addrs, uint8(0)
	switch {
	case len(b) >= ipv4Len && b[0] == ipv4Plain:
		proto = b[ipv4Proto]
		binary.BigEndian.PutUint16(b[ipv4Sum:], 0)
		binary.BigEndian.PutUint16(b[ipv4Sum:], ^checksum.Sum(b[:ipv4Len], 0))
	case len(b) >= ipv6Len && b[0]>>4 == 6:
		at, addrs, proto = ipv6Len, ipv6Addrs, b[ipv6Next]
	default:
		return
	}
	field, zero := at+tcpSum, uint16(0)
	if proto == UDP {
		field, zero = at+udpSum, 0xffff
	}
	if len(b) < field+2 {
		return
	}
	binary.BigEndian.PutUint16(b[field:], 0)
	sum := ^checksum.Sum(b[at:], checksum.Pseudo(b[addrs:at], proto, len(b)-at))
	if sum == 0 {
		sum = zero
	}
	binary.BigEndian.PutUint16(b[field:], sum)
}

// example returns a packet with 40 bytes of payload.
func example(v6, udp bool) []byte {
	const n = 40
	b := []byte{ipv4Plain, 2, 0, 0, 0, 5, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	if v6 {
		b = append([]byte{0x60, 1, 2, 3, 0, 0, TCP, 64}, bytes.Repeat([]byte{0xfd, 1}, 16)...)
	}
	l4 := []byte{0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0}
	if udp {
		l4 = binary.BigEndian.AppendUint16([]byte{0x12, 0x34, 0, 80}, uint16(udpHeaderLen+n))
		l4 = append(l4, 0, 0)
		b[map[bool]int{false: ipv4Proto, true: ipv6Next}[v6]] = UDP
	}
	b = append(append(b, l4...), make([]byte, n)...)
	for i := range n {
		b[len(b)-n+i] = byte(i * 7)
	}
	setLength(b)
	mend(b)
	return b
}

// setLength sets the length in the IP header.
func setLength(b []byte) {
	if b[0]>>4 == 6 {
		binary.BigEndian.PutUint16(b[ipv6PayloadLen:], uint16(len(b)-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(b[ipv4TotalLen:], uint16(len(b)))
	}
}

// behind returns the segment that follows the i-th of a flow.
func behind(b []byte, i int) []byte {
	c := bytes.Clone(b)
	at := ipv6Len
	if b[0]>>4 == 4 {
		at = ipv4Len
		binary.BigEndian.PutUint16(c[ipv4ID:], binary.BigEndian.Uint16(c[ipv4ID:])+uint16(i))
	}
	if c[ipv4Proto] == TCP && at == ipv4Len || c[ipv6Next] == TCP && at == ipv6Len {
		size := len(c) - at - tcpMinLen
		binary.BigEndian.PutUint32(c[at+tcpSeq:], binary.BigEndian.Uint32(c[at+tcpSeq:])+uint32(i*size))
	}
	mend(c)
	return c
}

// FuzzJoin parses arbitrary bytes, and joins packets that differ from a train in arbitrary
// bytes: in flip, every three bytes are the packet, the place and the change. What was joined
// is what cutting yields.
func FuzzJoin(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			f.Add(example(v6, udp), []byte(nil), v6, true)
			f.Add(example(v6, udp), []byte{1, 6, 0x40, 2, 9, 1}, v6, true)
		}
	}
	f.Fuzz(func(t *testing.T, first, flip []byte, v6, correct bool) {
		var p Packet
		for _, padded := range []int{0, 46} {
			if p.Parse(first, v6, true, padded); p.Kind == Joinable &&
				(p.Transport < ipv4Len || p.Payload <= p.Transport || p.End <= p.Payload || p.End > len(first)) {
				t.Fatalf("%+v of %d bytes", p, len(first))
			}
		}
		if len(first) == 0 || len(first) > MaxBytes {
			return
		}
		packets := [][]byte{bytes.Clone(first)}
		if p.Kind == Joinable && p.End == len(first) {
			for i := range 5 {
				packets = append(packets, behind(first, i+1))
			}
		}
		for ; len(flip) >= 3; flip = flip[3:] {
			b := packets[int(flip[0])%len(packets)]
			b[int(flip[1])%len(b)] ^= flip[2]
			if correct {
				mend(b)
			}
		}
		p, run, large := joinAll(packets, v6)
		if run.N > 1 {
			checkCut(t, &p, &run, large, packets)
		}
	})
}
