package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca/checksum"
)

// frame is a large frame in fields, from which the reference builds the segments.
type frame struct {
	lead           []byte // in front of the IP header
	v6             bool
	ipOptions      []byte // of IPv4, or extension headers of IPv6
	tos, ttl       uint8
	id             uint16
	src, dst       []byte
	via            []byte // the destination in the IPv6 header, if a routing header follows
	udp            bool
	sport, dport   uint16
	seq, ack       uint32
	flags          uint8
	window, urgent uint16
	tcpOptions     []byte
	payload        []byte
	firstNext      uint8 // next header of IPv6
}

// naiveSum is RFC 1071 word by word.
func naiveSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		if s += w; s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

// wire returns a packet with these fields and all its checksums.
func (f *frame) wire() []byte {
	be := binary.BigEndian
	l4 := be.AppendUint16(be.AppendUint16(nil, f.sport), f.dport)
	proto, sumAt := uint8(6), 16
	if f.udp {
		proto, sumAt = 17, 6
		l4 = be.AppendUint16(l4, uint16(8+len(f.payload)))
		l4 = append(l4, 0, 0)
	} else {
		l4 = be.AppendUint32(be.AppendUint32(l4, f.seq), f.ack)
		l4 = append(l4, uint8(20+len(f.tcpOptions))/4<<4, f.flags)
		l4 = be.AppendUint16(be.AppendUint16(l4, f.window), 0)
		l4 = append(be.AppendUint16(l4, f.urgent), f.tcpOptions...)
	}
	l4 = append(l4, f.payload...)
	sum := ^naiveSum(slices.Concat(f.pseudo(len(l4)), l4))
	if f.udp && sum == 0 {
		sum = 0xffff
	}
	be.PutUint16(l4[sumAt:], sum)
	if f.v6 {
		ip := be.AppendUint32(nil, 6<<28|uint32(f.tos)<<20|0x12345)
		ip = append(be.AppendUint16(ip, uint16(len(f.ipOptions)+len(l4))), f.nextOr(proto), f.ttl)
		to := f.dst
		if f.via != nil {
			to = f.via
		}
		return slices.Concat(f.lead, ip, f.src, to, f.ipOptions, l4)
	}
	n := 20 + len(f.ipOptions)
	ip := be.AppendUint16([]byte{0x40 | uint8(n/4), f.tos}, uint16(n+len(l4)))
	ip = append(be.AppendUint16(ip, f.id), 0x40, 0, f.ttl, proto, 0, 0)
	ip = slices.Concat(ip, f.src, f.dst, f.ipOptions)
	be.PutUint16(ip[10:], ^naiveSum(ip))
	return slices.Concat(f.lead, ip, l4)
}

// pseudo returns the pseudo-header of n bytes of TCP or UDP.
func (f *frame) pseudo(n int) []byte {
	return slices.Concat(f.src, f.dst, []byte{0, f.proto()}, binary.BigEndian.AppendUint16(nil, uint16(n)))
}

func (f *frame) proto() uint8 {
	if f.udp {
		return protoUDP
	}
	return protoTCP
}

func (f *frame) nextOr(proto uint8) uint8 {
	if len(f.ipOptions) == 0 {
		return proto
	}
	return f.firstNext
}

// reference cuts a frame, one field after the other.
func (f *frame) reference(mss int) (out [][]byte) {
	for off := 0; off == 0 || off < len(f.payload); off += mss {
		s := *f
		s.payload = f.payload[off:min(off+mss, len(f.payload))]
		s.id += uint16(len(out))
		s.seq += uint32(off)
		if off > 0 {
			s.flags &^= flagCWR
			if s.flags&flagURG != 0 && int(s.urgent) > off {
				s.urgent -= uint16(off)
			} else if s.flags&flagURG != 0 {
				s.flags, s.urgent = s.flags&^flagURG, 0
			}
		}
		if off+mss < len(f.payload) {
			s.flags &^= flagFIN | flagPSH
		}
		out = append(out, s.wire())
	}
	return out
}

// headers returns the headers of the frame as the host passes them: lengths of the whole,
// and arbitrary values in the checksums, unless there is a routing header.
func (f *frame) headers() []byte {
	b := f.wire()
	h := b[:len(b)-len(f.payload)]
	if !f.v6 {
		copy(h[len(f.lead)+10:], "\xde\xad")
	}
	if f.via != nil {
		l4 := len(f.lead) + ipv6Len + len(f.ipOptions)
		at := l4 + map[uint8]int{protoTCP: tcpSum, protoUDP: udpSum}[f.proto()]
		binary.BigEndian.PutUint16(h[at:], naiveSum(f.pseudo(len(b)-l4)))
	}
	return h
}

func drawFrame(t *rapid.T) *frame {
	bytesOf := func(n int, name string) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name) }
	f := &frame{
		lead: bytesOf(rapid.IntRange(0, 14).Draw(t, "lead"), "in front"),
		v6:   rapid.Bool().Draw(t, "IPv6"), udp: rapid.Bool().Draw(t, "UDP"),
		tos: rapid.Uint8().Draw(t, "tos"), ttl: rapid.Uint8().Draw(t, "ttl"), id: rapid.Uint16().Draw(t, "id"),
		sport: rapid.Uint16().Draw(t, "sport"), dport: rapid.Uint16().Draw(t, "dport"),
		seq: rapid.Uint32().Draw(t, "seq"), ack: rapid.Uint32().Draw(t, "ack"),
		flags: rapid.Uint8().Draw(t, "flags") &^ (flagSYN | flagRST), window: rapid.Uint16().Draw(t, "window"),
	}
	n := 4
	if f.v6 {
		n = 16
		if rapid.Bool().Draw(t, "extension headers") {
			f.firstNext = protoHopByHop
			f.ipOptions = slices.Concat([]byte{protoDestOpts, 0}, bytesOf(6, "hop by hop"), []byte{f.proto(), 0}, bytesOf(6, "options"))
		}
		if rapid.Bool().Draw(t, "routing header") {
			via := rapid.IntRange(0, 6).Draw(t, "segments")
			f.ipOptions = slices.Concat([]byte{f.nextOr(f.proto()), uint8(2 * via)}, bytesOf(6+16*via, "routing"), f.ipOptions)
			f.firstNext, f.via = protoRouting, bytesOf(16, "via")
		}
	} else {
		f.ipOptions = bytesOf(4*rapid.IntRange(0, 10).Draw(t, "IP options"), "IP options")
	}
	f.src, f.dst = bytesOf(n, "source"), bytesOf(n, "destination")
	ip := 20 + len(f.ipOptions)
	if f.v6 {
		ip += 20
	}
	room := (MaxHeader - len(f.lead) - ip - tcpLen) / 4
	f.tcpOptions = bytesOf(4*rapid.IntRange(0, min(10, room)).Draw(t, "TCP options"), "TCP options")
	if f.flags&flagURG != 0 {
		f.urgent = rapid.Uint16().Draw(t, "urgent")
	}
	f.payload = make([]byte, rapid.IntRange(0, 3000).Draw(t, "payload"))
	seed := rapid.Uint8().Draw(t, "seed")
	for i := range f.payload {
		f.payload[i] = byte(i)*seed + seed | byte(i>>8)
	}
	return f
}

// cut cuts with a plan; pieces is the number of pieces in which each payload is summed.
func cut(p *Plan, payload []byte, pieces int) (out [][]byte) {
	for i := range p.Segments() {
		off, n := p.Payload(i)
		b := payload[off : off+n]
		var s Sum
		for j := range pieces {
			s.Add(b[len(b)*j/pieces : len(b)*(j+1)/pieces])
		}
		h := make([]byte, p.HeaderLen())
		p.Put(h, i, s)
		out = append(out, append(h, b...))
	}
	return out
}

// Every segment equals the reference, to the byte, in any number of pieces.
func TestCutEqualsReference(t *testing.T) {
	var p Plan // one plan for all frames, so that nothing is left of an earlier one
	rapid.Check(t, func(t *rapid.T) {
		f := drawFrame(t)
		mss := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(21, 4000)).Draw(t, "MSS")
		if err := p.Cut(f.headers(), len(f.lead), len(f.payload), mss); err != nil {
			t.Fatal(err)
		}
		got, want := cut(&p, f.payload, rapid.IntRange(1, 4).Draw(t, "pieces")), f.reference(mss)
		if len(got) != len(want) {
			t.Fatalf("%d segments, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("segment %d of %d:\n%x, want\n%x", i, len(got), got[i], want[i])
			}
		}
	})
}

// A message without checksums becomes one with them, and trailing bytes are not covered.
func TestWholeEqualsReference(t *testing.T) {
	var p Plan
	rapid.Check(t, func(t *rapid.T) {
		f := drawFrame(t)
		if f.via != nil {
			t.Skip("the final destination is not known")
		}
		f.flags = rapid.Uint8().Draw(t, "all flags")
		want := f.wire()
		msg := slices.Concat(want, make([]byte, rapid.IntRange(0, 20).Draw(t, "trailing")))
		l4 := len(want) - len(f.payload)
		if !f.v6 {
			clear(msg[len(f.lead)+10:][:2])
		}
		if f.udp {
			clear(msg[l4-2:][:2])
		} else {
			clear(msg[l4-len(f.tcpOptions)-4:][:2])
		}
		if err := p.Whole(msg[:min(len(msg), MaxHeader)], len(f.lead), len(msg)); err != nil {
			t.Fatal(err)
		}
		if got := cut(&p, msg[p.HeaderLen():], 1); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Fatalf("message\n%x, want\n%x", got, want)
		}
	})
}

// In messages that have no checksum of TCP or UDP to fill in, only that of the IPv4 header
// changes.
func TestWholeCompletesOnlyTheIPv4Header(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"ICMP":              func(b []byte) []byte { b[9] = 1; return b },
		"first fragment":    func(b []byte) []byte { b[6] = 0x20; return b },
		"last fragment":     func(b []byte) []byte { b[7] = 9; return b },
		"UDP, truncated":    func(b []byte) []byte { return b[:25] },
		"UDP length":        func(b []byte) []byte { b[25]--; return b },
		"IP length":         func(b []byte) []byte { b[3]++; return b },
		"IP length small":   func(b []byte) []byte { b[3] = 3; return b },
		"TCP, truncated":    func(b []byte) []byte { b[9] = 6; return b[:39] },
		"TCP, bad offset":   func(b []byte) []byte { b[9], b[32] = 6, 0x40; return b },
		"TCP, long options": func(b []byte) []byte { b[9], b[32] = 6, 0xf0; return b },
	} {
		f := &frame{src: []byte{10, 0, 0, 1}, dst: []byte{10, 0, 0, 2}, udp: true, payload: make([]byte, 20), ttl: 9}
		msg := change(f.wire())
		want := slices.Clone(msg)
		clear(want[10:12])
		binary.BigEndian.PutUint16(want[10:], ^naiveSum(want[:20]))
		msg[10], msg[11] = 1, 2
		var p Plan
		if err := p.Whole(msg, 0, len(msg)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		h := make([]byte, MaxHeader)
		_, n := p.Payload(0)
		p.Put(h, 0, Sum{})
		if got := slices.Concat(h[:p.HeaderLen()], msg[p.HeaderLen():]); !bytes.Equal(got, want) || n != 0 {
			t.Errorf("%s: payload %d, message\n%x, want\n%x", name, n, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	tcp4 := func() *frame { return &frame{src: []byte{10, 0, 0, 1}, dst: []byte{10, 0, 0, 2}} }
	tcp6 := func() *frame { return &frame{v6: true, src: make([]byte, 16), dst: make([]byte, 16)} }
	for name, c := range map[string]struct {
		f            *frame
		change       func([]byte) []byte
		payload, mss int
		want         error
	}{
		"no MSS":            {f: tcp4(), payload: 9, mss: 0, want: ErrSize},
		"negative payload":  {f: tcp4(), payload: -1, mss: 1, want: ErrSize},
		"version 5":         {f: tcp4(), change: func(b []byte) []byte { b[0] = 0x55; return b }, mss: 1, want: ErrNotIP},
		"header of 16":      {f: tcp4(), change: func(b []byte) []byte { b[0] = 0x44; return b }, mss: 1, want: ErrLength},
		"fragment":          {f: tcp4(), change: func(b []byte) []byte { b[6] = 0x20; return b }, mss: 1, want: ErrFragment},
		"ICMP":              {f: tcp4(), change: func(b []byte) []byte { b[9] = 1; return b }, mss: 1, want: ErrProtocol},
		"IPv6 fragment":     {f: tcp6(), change: func(b []byte) []byte { b[6] = 44; return b }, mss: 1, want: ErrProtocol},
		"authentication":    {f: tcp6(), change: func(b []byte) []byte { b[6] = 51; return b }, mss: 1, want: ErrProtocol},
		"routing header":    {f: tcp6(), change: func(b []byte) []byte { b[6] = 43; return b }, mss: 1, want: ErrShort},
		"long extension":    {f: tcp6(), change: func(b []byte) []byte { b[6], b[41] = 60, 255; return b }, mss: 1, want: ErrLong},
		"truncated":         {f: tcp4(), change: func(b []byte) []byte { return b[:39] }, mss: 1, want: ErrShort},
		"byte too many":     {f: tcp4(), change: func(b []byte) []byte { return append(b, 0) }, mss: 1, want: ErrLength},
		"longer than a max": {f: tcp4(), change: func([]byte) []byte { return make([]byte, MaxHeader+1) }, mss: 1, want: ErrLong},
		"segment too long":  {f: tcp4(), payload: 65496, mss: 65496, want: ErrLong},
		"IPv6 too long":     {f: tcp6(), payload: 65516, mss: 65516, want: ErrLong},
		"SYN":               {f: &frame{src: tcp4().src, dst: tcp4().dst, flags: flagSYN}, payload: 2, mss: 1, want: ErrFlags},
		"longest":           {f: tcp4(), payload: 65495, mss: 65495},
		"longest of IPv6":   {f: tcp6(), payload: 65515, mss: 65515},
		"one SYN":           {f: &frame{src: tcp4().src, dst: tcp4().dst, flags: flagSYN}, payload: 2, mss: 2},
	} {
		h := c.f.headers()
		if c.change != nil {
			h = c.change(h)
		}
		var p Plan
		if err := p.Cut(h, 0, c.payload, c.mss); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		for n := range min(len(h), len(c.f.headers())) {
			if err := p.Cut(h[:n], 0, 100, 10); err == nil {
				t.Errorf("%s: headers of %d bytes are accepted", name, n)
			}
		}
	}
}

// A Sum equals the naive sum for every length, alignment and division.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x80, 0xfe, 0xff}), 0, 300).Draw(t, "bytes")
		b = b[rapid.IntRange(0, min(7, len(b))).Draw(t, "from"):]
		var s Sum
		for rest := b; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			s.Add(rest[:n])
			rest = rest[n:]
		}
		if got, want := checksum.Fold(s.sum), naiveSum(b); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	f := &frame{lead: make([]byte, 4), src: []byte{10, 0, 0, 1}, dst: []byte{10, 0, 0, 2}, tcpOptions: make([]byte, 12), payload: make([]byte, 1<<15)}
	h, dst := f.headers(), make([]byte, MaxHeader)
	var p Plan
	if n := testing.AllocsPerRun(100, func() {
		if err := p.Cut(h, 4, len(f.payload), 1400); err != nil {
			t.Fatal(err)
		}
		for i := range p.Segments() {
			var s Sum
			off, n := p.Payload(i)
			s.Add(f.payload[off : off+n])
			p.Put(dst, i, s)
		}
		if p.Whole(h, 4, len(h)) != nil || p.Whole(h, 5, len(h)) == nil {
			t.Fatal("whole")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzCut feeds any headers to Cut and Whole. What Cut accepts has right checksums in every
// segment, and the lengths add up.
func FuzzCut(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			n := 4
			if v6 {
				n = 16
			}
			x := &frame{v6: v6, udp: udp, lead: make([]byte, 4), src: make([]byte, n), dst: make([]byte, n), tcpOptions: make([]byte, 12)}
			f.Add(x.headers(), uint8(4), uint16(3000), uint16(1000))
		}
	}
	f.Fuzz(func(t *testing.T, h []byte, ip uint8, payload, mss uint16) {
		var p Plan
		body := make([]byte, payload)
		for i := range body {
			body[i] = byte(i * 31)
		}
		if err := p.Whole(h[:min(len(h), MaxHeader)], int(ip), len(h)); err == nil {
			off, n := p.Payload(0)
			if p.HeaderLen() > len(h) || off != 0 || p.HeaderLen()+n > len(h) {
				t.Fatalf("whole: headers %d, payload %d of %d bytes", p.HeaderLen(), n, len(h))
			}
			p.Put(make([]byte, p.HeaderLen()), 0, Sum{})
		}
		if p.Cut(h, int(ip), len(body), int(mss)) != nil {
			return
		}
		total := 0
		for i, b := range cut(&p, body, 1) {
			check(t, b[ip:], h[ip:], len(body), fmt.Sprintf("segment %d of %d", i, p.Segments()))
			total += len(b) - len(h)
		}
		if total != len(body) {
			t.Fatalf("%d bytes of payload become %d", len(body), total)
		}
	})
}

// check verifies lengths and checksums of an IP packet, which was cut from a frame with these
// headers and payload.
func check(t *testing.T, b, headers []byte, payload int, what string) {
	t.Helper()
	be := binary.BigEndian
	var addrs []byte
	routed := false
	proto, l4 := b[9], int(b[0]&0xf)*4
	if b[0]>>4 == 6 {
		addrs, proto, l4 = b[8:40], b[6], 40
		for proto == protoHopByHop || proto == protoDestOpts || proto == protoRouting {
			routed = routed || proto == protoRouting
			proto, l4 = b[l4], l4+int(b[l4+1])*8+8
		}
		if int(be.Uint16(b[4:])) != len(b)-40 {
			t.Fatalf("%s: IPv6 length: %x", what, b)
		}
	} else {
		if addrs = b[12:20]; naiveSum(b[:l4]) != 0xffff || int(be.Uint16(b[2:])) != len(b) {
			t.Fatalf("%s: IPv4 header: %x", what, b[:l4])
		}
	}
	if routed { // the sum of the addresses: that of the pseudo-header less the rest
		at := l4 + map[uint8]int{protoTCP: tcpSum, protoUDP: udpSum}[proto]
		rest := be.AppendUint32([]byte{0, proto}, uint32(len(headers)-l4+payload))
		addrs = be.AppendUint16(bytes.Clone(headers[at:at+2]), ^naiveSum(rest))
	}
	pseudo := slices.Concat(addrs, []byte{0, proto}, be.AppendUint16(nil, uint16(len(b)-l4)))
	if naiveSum(slices.Concat(pseudo, b[l4:])) != 0xffff {
		t.Fatalf("%s: checksum: %x", what, b)
	}
	if proto == protoUDP && (int(be.Uint16(b[l4+4:])) != len(b)-l4 || be.Uint16(b[l4+6:]) == 0) {
		t.Fatalf("%s: UDP header: %x", what, b[l4:])
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{64, 1388, 4036, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				var s Sum
				s.Add(data)
			}
		})
	}
}

// BenchmarkPut writes the headers of one segment, without a pass over the payload.
func BenchmarkPut(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		b.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(b *testing.B) {
			f := &frame{v6: v6, lead: make([]byte, 4), src: make([]byte, 16), dst: make([]byte, 16), tcpOptions: make([]byte, 12)}
			if !v6 {
				f.src, f.dst = f.src[:4], f.dst[:4]
			}
			var p Plan
			if err := p.Cut(f.headers(), 4, 1<<15, 1388); err != nil {
				b.Fatal(err)
			}
			dst, i := make([]byte, MaxHeader), 0
			for b.Loop() {
				p.Put(dst, i%p.Segments(), Sum{})
				i++
			}
		})
	}
}

// BenchmarkCut cuts a frame of 64,000 bytes: all headers and checksums.
func BenchmarkCut(b *testing.B) {
	for _, mss := range []int{1388, 1988, 4036} {
		b.Run(fmt.Sprint(mss), func(b *testing.B) {
			f := &frame{lead: make([]byte, 4), src: make([]byte, 4), dst: make([]byte, 4), tcpOptions: make([]byte, 12)}
			h, body, dst := f.headers(), make([]byte, 64000), make([]byte, MaxHeader)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				var p Plan
				if err := p.Cut(h, 4, len(body), mss); err != nil {
					b.Fatal(err)
				}
				for i := range p.Segments() {
					var s Sum
					off, n := p.Payload(i)
					s.Add(body[off : off+n])
					p.Put(dst, i, s)
				}
			}
		})
	}
}
