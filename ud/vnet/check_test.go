package vnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca/checksum"
)

// ipv4 returns an Ethernet frame with an IPv4 header, without options, and a payload.
func ipv4(proto uint8, payload []byte) []byte {
	f := make([]byte, 34, 34+len(payload))
	f[12], f[13], f[14], f[23] = 0x08, 0x00, 0x45, proto
	binary.BigEndian.PutUint16(f[16:], uint16(20+len(payload)))
	copy(f[26:], "\xc0\x00\x02\x01\xc0\x00\x02\x02")
	return append(f, payload...)
}

// ipv6 returns an Ethernet frame with an IPv6 header and a payload.
func ipv6(next uint8, payload []byte) []byte {
	f := make([]byte, 54, 54+len(payload))
	f[12], f[13], f[14], f[20] = 0x86, 0xdd, 0x60, next
	binary.BigEndian.PutUint16(f[18:], uint16(len(payload)))
	f[22], f[38], f[37], f[53] = 0xfd, 0xfd, 1, 2
	return append(f, payload...)
}

// tcp returns a TCP header of size bytes and n bytes of payload.
func tcp(size, n int) []byte {
	b := make([]byte, size+n)
	b[12] = byte(size/4) << 4
	for i := range n {
		b[size+i] = byte(i)
	}
	return b
}

// extended returns a hop-by-hop and a destination options header in front of a payload.
func extended(next uint8, payload []byte) []byte {
	return append([]byte{60, 0, 1, 4, 0, 0, 0, 0, next, 1, 1, 12, 23: 0}, payload...)
}

func TestCheckAcceptsWhatTheKernelSends(t *testing.T) {
	syn := ipv4(6, tcp(20, 300))
	syn[34+13] = 0x02
	for name, c := range map[string]struct {
		h       Header
		frame   []byte
		headers int
	}{
		"no offload":          {Header{}, nil, 0},
		"verified":            {Header{Flags: DataValid}, []byte{1}, 0},
		"stale hint":          {Header{HdrLen: 9999}, nil, 0},
		"checksum, IPv4":      {Header{Flags: NeedsCsum, CsumStart: 34, CsumOffset: 16}, ipv4(6, tcp(20, 3)), 0},
		"checksum, IPv6":      {Header{Flags: NeedsCsum, CsumStart: 54, CsumOffset: 6}, ipv6(17, make([]byte, 8)), 0},
		"checksum in tunnel":  {Header{Flags: NeedsCsum, CsumStart: 54, CsumOffset: 16}, ipv4(4, append(make([]byte, 20), tcp(20, 0)...)), 0},
		"TCP, IPv4":           {Header{NeedsCsum, GSOTCPv4, 66, 1448, 34, 16}, ipv4(6, tcp(32, 5000)), 66},
		"TCP, IPv6":           {Header{NeedsCsum, GSOTCPv6, 74, 1, 54, 16}, ipv6(6, tcp(20, 2)), 74},
		"UDP, IPv4":           {Header{NeedsCsum, GSOUDPL4, 42, 100, 34, 6}, ipv4(17, make([]byte, 8+150)), 42},
		"UDP, IPv6":           {Header{NeedsCsum, GSOUDPL4, 62, 100, 54, 6}, ipv6(17, make([]byte, 8+150)), 62},
		"IPv6 with options":   {Header{NeedsCsum, GSOTCPv6, 98, 100, 78, 16}, ipv6(0, extended(6, tcp(20, 300))), 98},
		"IPv6 with routing":   {Header{NeedsCsum, GSOUDPL4, 70, 100, 62, 6}, ipv6(43, append([]byte{17, 7: 0}, make([]byte, 300)...)), 70},
		"payload in the hint": {Header{NeedsCsum, GSOTCPv4, 80, 100, 34, 16}, ipv4(6, tcp(20, 300)), 54},
		"SYN, one segment":    {Header{NeedsCsum, GSOTCPv4, 54, 300, 34, 16}, syn, 54},
		"verified, TCP":       {Header{DataValid, GSOTCPv4, 66, 1448, 0, 0}, ipv4(6, tcp(32, 5000)), 66},
		"verified, IPv6":      {Header{DataValid, GSOTCPv6, 74, 1, 0, 0}, ipv6(6, tcp(20, 2)), 74},
		"verified, UDP":       {Header{DataValid, GSOUDPL4, 42, 100, 0, 0}, ipv4(17, make([]byte, 8+150)), 42},
		"one segment":         {Header{NeedsCsum, GSOTCPv4, 54, 65000, 34, 16}, ipv4(6, tcp(20, 1)), 54},
	} {
		if headers, err := c.h.Check(c.frame); err != nil || headers != c.headers {
			t.Errorf("%s: headers %d, %v; want %d", name, headers, err, c.headers)
		}
	}
}

func TestCheckNamesTheField(t *testing.T) {
	large := Header{NeedsCsum, GSOTCPv4, 54, 100, 34, 16}
	frame := ipv4(6, tcp(20, 300))
	change := func(f func(*Header)) Header { h := large; f(&h); return h }
	edit := func(frame []byte, at int, v byte) []byte { f := bytes.Clone(frame); f[at] = v; return f }
	for name, c := range map[string]struct {
		h     Header
		frame []byte
		want  error
	}{
		"unknown flag":              {Header{Flags: 4}, frame, ErrFlags},
		"fragmentation of UDP":      {change(func(h *Header) { h.GSOType = GSOUDP }), frame, ErrGSOType},
		"segmentation with ECN":     {change(func(h *Header) { h.GSOType |= GSOECN }), frame, ErrGSOType},
		"unknown segmentation":      {change(func(h *Header) { h.GSOType = 9 }), frame, ErrGSOType},
		"IPv6 for an IPv4 frame":    {change(func(h *Header) { h.GSOType = GSOTCPv6 }), frame, ErrGSOType},
		"IPv4 for an IPv6 frame":    {Header{NeedsCsum, GSOTCPv4, 74, 100, 54, 16}, ipv6(6, tcp(20, 300)), ErrGSOType},
		"wrong version, IPv6":       {Header{NeedsCsum, GSOTCPv6, 74, 100, 54, 16}, edit(ipv6(6, tcp(20, 300)), 14, 0x45), ErrNetwork},
		"UDP for a TCP frame":       {change(func(h *Header) { h.GSOType = GSOUDPL4 }), frame, ErrGSOType},
		"TCP for a UDP frame":       {large, ipv4(17, make([]byte, 300)), ErrGSOType},
		"segments of no bytes":      {change(func(h *Header) { h.GSOSize = 0 }), frame, ErrGSOSize},
		"hint beyond the frame":     {change(func(h *Header) { h.HdrLen = 355 }), frame, ErrHdrLen},
		"no checksum":               {change(func(h *Header) { h.Flags = 0 }), frame, ErrNoCsum},
		"verified, with options":    {Header{DataValid, GSOTCPv6, 98, 100, 0, 0}, ipv6(0, extended(6, tcp(20, 300))), ErrNoCsum},
		"checksum elsewhere":        {change(func(h *Header) { h.CsumStart = 35 }), frame, ErrCsumStart},
		"checksum of UDP in TCP":    {change(func(h *Header) { h.CsumOffset = 6 }), frame, ErrCsumOffset},
		"fragment":                  {large, edit(frame, 20, 0x20), ErrNetwork},
		"later fragment":            {large, edit(frame, 21, 1), ErrNetwork},
		"fragment, IPv6":            {change(func(h *Header) { h.GSOType = GSOTCPv6 }), ipv6(44, make([]byte, 300)), ErrGSOType},
		"ARP":                       {large, edit(frame, 13, 6), ErrNetwork},
		"wrong IP version":          {large, edit(frame, 14, 0x65), ErrNetwork},
		"short IP header":           {large, edit(frame, 14, 0x44), ErrNetwork},
		"IP header beyond frame":    {change(func(h *Header) { h.HdrLen = 0 }), edit(frame, 14, 0x4f)[:60], ErrNetwork},
		"empty frame":               {change(func(h *Header) { h.HdrLen = 0 }), nil, ErrNetwork},
		"no TCP header":             {change(func(h *Header) { h.HdrLen = 0 }), frame[:53], ErrTransport},
		"short TCP header":          {large, edit(frame, 46, 0x40), ErrTransport},
		"TCP header beyond frame":   {change(func(h *Header) { h.HdrLen = 0 }), edit(frame, 46, 0xf0)[:94], ErrTransport},
		"SYN":                       {large, edit(frame, 47, 0x02), ErrSYN},
		"RST":                       {large, edit(frame, 47, 0x14), ErrSYN},
		"no payload":                {change(func(h *Header) { h.HdrLen = 0 }), frame[:54], ErrTransport},
		"no UDP payload":            {Header{NeedsCsum, GSOUDPL4, 0, 1, 34, 6}, ipv4(17, make([]byte, 8)), ErrTransport},
		"extension beyond frame":    {Header{NeedsCsum, GSOTCPv6, 0, 1, 54, 16}, ipv6(0, []byte{6, 255, 0, 0, 0, 0, 0, 0}), ErrTransport},
		"extension cut off":         {Header{NeedsCsum, GSOTCPv6, 0, 1, 54, 16}, ipv6(60, []byte{6, 0, 0}), ErrNetwork},
		"too many extensions":       {Header{NeedsCsum, GSOTCPv6, 0, 1, 54, 16}, ipv6(0, make([]byte, 9*8)), ErrNetwork},
		"checksum in the IP header": {Header{Flags: NeedsCsum, CsumStart: 33}, frame, ErrCsumStart},
		"checksum in Ethernet":      {Header{Flags: NeedsCsum, CsumOffset: 12}, frame, ErrCsumStart},
		"checksum in IP options":    {Header{Flags: NeedsCsum, CsumStart: 34}, edit(frame, 14, 0x46), ErrCsumStart},
		"checksum in IPv6 address":  {Header{Flags: NeedsCsum, CsumStart: 52}, ipv6(6, tcp(20, 0)), ErrCsumStart},
		"start behind the frame":    {Header{Flags: NeedsCsum, CsumStart: 354}, frame, ErrCsumStart},
		"field behind the frame":    {Header{Flags: NeedsCsum, CsumStart: 34, CsumOffset: 319}, frame, ErrCsumOffset},
		"offset that overflows":     {Header{Flags: NeedsCsum, CsumStart: 34, CsumOffset: 65535}, frame, ErrCsumOffset},
		"start that overflows":      {Header{Flags: NeedsCsum, CsumStart: 65535, CsumOffset: 1}, frame, ErrCsumStart},
		"checksum of ARP":           {Header{Flags: NeedsCsum, CsumStart: 34}, edit(frame, 13, 6), ErrNetwork},
		"checksum of nothing":       {Header{Flags: NeedsCsum}, nil, ErrNetwork},
	} {
		if headers, err := c.h.Check(c.frame); !errors.Is(err, c.want) || headers != 0 {
			t.Errorf("%s: headers %d, %v; want %v", name, headers, err, c.want)
		}
	}
}

// A completed datagram has a correct checksum, which is never 0.
func TestCompleteFillsInTheChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		message := append(make([]byte, 8), rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")...)
		frame, start, addrs := ipv4(17, message), 34, 26
		if rapid.Bool().Draw(t, "IPv6") {
			frame, start, addrs = ipv6(17, message), 54, 22
		}
		pseudo := checksum.Pseudo(frame[addrs:start], 17, len(message))
		if rapid.Bool().Draw(t, "zero sum") { // the payload makes the checksum zero
			frame = append(frame, 0, 0)[:len(frame)+len(frame)%2]
			frame = binary.BigEndian.AppendUint16(frame, ^checksum.Sum(frame[start:], pseudo))
		}
		binary.BigEndian.PutUint16(frame[start+6:], pseudo)
		h := Header{Flags: NeedsCsum, CsumStart: uint16(start), CsumOffset: 6}
		if _, err := h.Check(frame); err != nil {
			t.Fatal(err)
		}
		h.Complete(frame)
		if sum := checksum.Sum(frame[start:], pseudo); sum != 0xffff || binary.BigEndian.Uint16(frame[start+6:]) == 0 {
			t.Fatalf("sum %#x of % x, want 0xffff and a checksum", sum, frame[start:])
		}
	})
}

func TestCompleteWithoutRequestChangesNothing(t *testing.T) {
	frame := ipv4(17, make([]byte, 20))
	want := bytes.Clone(frame)
	if (Header{Flags: DataValid, CsumStart: 34, CsumOffset: 6}).Complete(frame); !bytes.Equal(frame, want) {
		t.Errorf("got % x, want % x", frame, want)
	}
}

func TestCheckAndCompleteAllocateNothing(t *testing.T) {
	frame := ipv4(6, tcp(20, 300))
	h := Header{NeedsCsum, GSOTCPv4, 54, 100, 34, 16}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := h.Check(frame); err != nil {
			t.Fatal(err)
		}
		h.Complete(frame)
		if _, err := h.Check(frame[:40]); err == nil {
			t.Fatal("40 bytes accepted")
		}
	}); n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

// FuzzCheck gives Check any header and frame. If it accepts them, Complete writes only the
// checksum, behind the IP header, and the headers of a large frame end within it.
func FuzzCheck(f *testing.F) {
	put := func(h Header, frame []byte) {
		b := make([]byte, HeaderLen, HeaderLen+len(frame))
		h.Put(b)
		f.Add(append(b, frame...))
	}
	put(Header{NeedsCsum, GSOTCPv4, 66, 1448, 34, 16}, ipv4(6, tcp(32, 200)))
	put(Header{NeedsCsum, GSOTCPv6, 98, 100, 78, 16}, ipv6(0, extended(6, tcp(20, 300))))
	put(Header{NeedsCsum, GSOUDPL4, 42, 100, 34, 6}, ipv4(17, make([]byte, 8+150)))
	put(Header{Flags: NeedsCsum, CsumStart: 54, CsumOffset: 16}, ipv4(4, append(make([]byte, 20), tcp(20, 0)...)))
	put(Header{Flags: DataValid}, ipv6(17, make([]byte, 8)))
	f.Fuzz(func(t *testing.T, src []byte) {
		h, err := Parse(src)
		if err != nil {
			return
		}
		frame := bytes.Clone(src[HeaderLen:])
		headers, err := h.Check(frame)
		if err != nil {
			return
		}
		h.Complete(frame)
		at := int(h.CsumStart) + int(h.CsumOffset)
		for i, v := range src[HeaderLen:] {
			if frame[i] != v && (i < at || i > at+1 || i < 34) {
				t.Fatalf("byte %d changed, the checksum is at %d", i, at)
			}
		}
		if large := h.GSOType != GSONone; large != (headers > 0) || headers > 0 && (headers < 42 || headers >= len(frame)) {
			t.Fatalf("headers %d of %d bytes, %+v", headers, len(frame), h)
		}
	})
}
