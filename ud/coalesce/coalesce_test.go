package coalesce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca/join"
)

const batch = 64

// tcp4, tcp6, udp4 and udp6 are the first frames of flows with 100 bytes of payload.
func tcp4() segment {
	return segment{host: 1, port: 1000, ttl: 64, id: 7, frag: 0x4000, seq: 1 << 30, ack: 5, window: 500, options: timestamps(9), payload: data(100)}
}

func tcp6() segment {
	return segment{ipv6: true, host: 1, port: 1000, ttl: 64, label: 0x12345, seq: 0xffffff80, ack: 5, window: 500, options: timestamps(9), payload: data(100)}
}

func udp4() segment {
	return segment{udp: true, host: 1, port: 1000, ttl: 64, id: 7, payload: data(100)}
}

func udp6() segment {
	return segment{ipv6: true, udp: true, host: 1, port: 1000, ttl: 64, label: 0x12345, payload: data(100)}
}

func data(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef "), n/17+1)[:n] }

// timestamps returns the TCP option (RFC 7323, section 3.2), after two NOPs.
func timestamps(value byte) []byte { return []byte{1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 3} }

// following returns the segment behind s, with n bytes of payload.
func (s segment) following(n int) segment {
	s.seq += uint32(len(s.payload))
	s.id++
	s.payload = data(n)
	return s
}

// train returns n frames of a flow, all of which fit.
func train(s segment, n int) (out []segment) {
	for range n {
		out = append(out, s)
		s = s.following(len(s.payload))
	}
	return out
}

func frames(segments ...segment) (out [][]byte) {
	for _, s := range segments {
		out = append(out, s.frame())
	}
	return out
}

func TestJoinsEachProtocol(t *testing.T) {
	for name, first := range map[string]segment{"TCP over IPv4": tcp4(), "TCP over IPv6": tcp6(), "UDP over IPv4": udp4(), "UDP over IPv6": udp6()} {
		t.Run(name, func(t *testing.T) {
			c := New(batch, true)
			run := train(first, 5)
			if sizes := joined(t, c, frames(run...)); !slices.Equal(sizes, []int{5}) {
				t.Errorf("equal segments: %v, want [5]", sizes)
			}
			short := append(run, run[4].following(30), run[4].following(30).following(100))
			if sizes := joined(t, c, frames(short...)); !slices.Equal(sizes, []int{6, 1}) {
				t.Errorf("a short segment in the middle: %v, want [6 1]", sizes)
			}
			long := append(run, run[4].following(101), run[4].following(101).following(101))
			if sizes := joined(t, c, frames(long...)); !slices.Equal(sizes, []int{5, 2}) {
				t.Errorf("a longer segment: %v, want [5 2]", sizes)
			}
			if sizes := joined(t, c, frames(run[0])); !slices.Equal(sizes, []int{1}) {
				t.Errorf("one segment: %v, want [1]", sizes)
			}
			if sizes := joined(t, c, nil); len(sizes) != 0 {
				t.Errorf("no segment: %v", sizes)
			}
		})
	}
}

// A frame that differs in anything that segmentation would not restore is not joined to
// those in front of it, and those behind it are not either.
func TestLeavesUnusualFramesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		first  segment
		change func(*segment)
		want   []int // of two frames, the changed one, and two more
	}{
		"TTL":                   {tcp4(), func(s *segment) { s.ttl-- }, []int{2, 1, 2}},
		"type of service":       {tcp4(), func(s *segment) { s.tos = 0x28 }, []int{2, 1, 2}},
		"ECN CE":                {tcp4(), func(s *segment) { s.tos = 3 }, []int{2, 1, 2}},
		"ECN CE, UDP":           {udp6(), func(s *segment) { s.tos = 3 }, []int{2, 1, 2}},
		"no DF":                 {tcp4(), func(s *segment) { s.frag = 0 }, []int{2, 1, 2}},
		"identification":        {tcp4(), func(s *segment) { s.id += 5 }, []int{2, 1, 2}},
		"IPv4 options":          {tcp4(), func(s *segment) { s.ipOptions = []byte{1, 1, 1, 1} }, []int{2, 1, 2}},
		"fragment":              {udp4(), func(s *segment) { s.frag = 0x2000 }, []int{2, 1, 2}},
		"later fragment":        {udp4(), func(s *segment) { s.frag = 5 }, []int{2, 1, 2}},
		"reserved bit":          {udp4(), func(s *segment) { s.frag = 0x8000 }, []int{2, 1, 2}},
		"IPv4 checksum":         {tcp4(), func(s *segment) { s.badIPSum = true }, []int{2, 1, 2}},
		"length beyond frame":   {tcp4(), func(s *segment) { s.longer = 1 }, []int{2, 1, 2}},
		"length within frame":   {tcp4(), func(s *segment) { s.longer = -1 }, []int{2, 1, 2}},
		"extension header":      {tcp6(), func(s *segment) { s.ext = []byte{6, 0, 1, 4, 0, 0, 0, 0} }, []int{2, 1, 2}},
		"flow label":            {tcp6(), func(s *segment) { s.label++ }, []int{2, 1, 2}},
		"hop limit":             {udp6(), func(s *segment) { s.ttl-- }, []int{2, 1, 2}},
		"traffic class":         {udp6(), func(s *segment) { s.tos = 0x20 }, []int{2, 1, 2}},
		"IPv6 length":           {udp6(), func(s *segment) { s.longer = 1 }, []int{2, 1, 2}},
		"IPv6 length, trailer":  {tcp6(), func(s *segment) { s.padding = data(8) }, []int{2, 1, 2}},
		"sequence gap":          {tcp4(), func(s *segment) { s.seq++ }, []int{2, 1, 2}},
		"acknowledgement":       {tcp4(), func(s *segment) { s.ack++ }, []int{2, 1, 2}},
		"window":                {tcp4(), func(s *segment) { s.window = 0 }, []int{2, 1, 2}},
		"urgent pointer":        {tcp4(), func(s *segment) { s.urg = 1 }, []int{2, 1, 2}},
		"other timestamp":       {tcp4(), func(s *segment) { s.options = timestamps(10) }, []int{2, 1, 2}},
		"no options":            {tcp6(), func(s *segment) { s.options = nil }, []int{2, 1, 2}},
		"more options":          {tcp6(), func(s *segment) { s.options = append(timestamps(9), 1, 1, 1, 0) }, []int{2, 1, 2}},
		"SYN":                   {tcp4(), func(s *segment) { s.flags = 2 }, []int{2, 1, 2}},
		"FIN":                   {tcp4(), func(s *segment) { s.flags = 1 }, []int{2, 1, 2}},
		"RST":                   {tcp4(), func(s *segment) { s.flags = 4 }, []int{2, 1, 2}},
		"URG":                   {tcp4(), func(s *segment) { s.flags = 0x20 }, []int{2, 1, 2}},
		"CWR":                   {tcp4(), func(s *segment) { s.flags = 0x80 }, []int{2, 1, 2}},
		"ECE":                   {tcp4(), func(s *segment) { s.flags = flagECE }, []int{2, 1, 2}},
		"no ACK":                {tcp4(), func(s *segment) { s.noACK = true }, []int{2, 1, 2}},
		"TCP checksum":          {tcp4(), func(s *segment) { s.badSum = true }, []int{2, 1, 2}},
		"Ethernet source":       {tcp4(), func(s *segment) { s.mac = 9 }, []int{2, 1, 2}},
		"reserved bit of TCP":   {tcp4(), func(s *segment) { s.reserved = 1 }, []int{2, 1, 2}},
		"UDP length":            {udp4(), func(s *segment) { s.longerUDP = -1 }, []int{2, 1, 2}},
		"UDP checksum":          {udp6(), func(s *segment) { s.badSum = true }, []int{2, 1, 2}},
		"UDP without checksum":  {udp4(), func(s *segment) { s.noSum = true }, []int{2, 1, 2}},
		"no payload":            {tcp4(), func(s *segment) { s.payload = nil }, []int{2, 1, 2}},
		"no payload, UDP":       {udp4(), func(s *segment) { s.payload = nil }, []int{2, 1, 2}},
		"to a group":            {udp4(), func(s *segment) { s.group = true }, []int{2, 1, 2}},
		"PSH":                   {tcp4(), func(s *segment) { s.flags = flagPSH }, []int{3, 2}},
		"another port":          {tcp4(), func(s *segment) { s.port++ }, []int{2, 1, 2}},
		"another host":          {tcp6(), func(s *segment) { s.host++ }, []int{2, 1, 2}},
		"verified by a device":  {tcp4(), func(s *segment) { s.verifiedByHW = true }, []int{5}},
		"no difference":         {tcp6(), func(*segment) {}, []int{5}},
		"fragment of TCP":       {tcp4(), func(s *segment) { s.frag = 0x2000 }, []int{2, 1, 2}},
		"unverifiable checksum": {udp4(), func(s *segment) { s.badSum, s.verifiedByHW = true, true }, []int{5}},
	} {
		t.Run(name, func(t *testing.T) {
			run := train(c.first, 5)
			c.change(&run[2])
			in := frames(run...)
			if name == "unverifiable checksum" { // segmentation corrects it, so the frames differ
				if out := New(batch, true).Join(in, oneSender(in)); len(out) != 1 {
					t.Errorf("%d frames, want 1: the device has verified the checksum", len(out))
				}
				return
			}
			if sizes := joined(t, New(batch, true), in); !slices.Equal(sizes, c.want) {
				t.Errorf("%v, want %v", sizes, c.want)
			}
		})
	}
}

// What is unusual but equal in all frames is joined, unless segmentation would not repeat it.
func TestJoinsEqualFrames(t *testing.T) {
	for name, change := range map[string]func(*segment){
		"ECN CE":           func(s *segment) { s.tos = 3 },
		"ECE":              func(s *segment) { s.flags = flagECE },
		"zero window":      func(s *segment) { s.window = 0 },
		"one byte each":    func(s *segment) { s.payload = data(1) },
		"no options":       func(s *segment) { s.options = nil },
		"40 bytes options": func(s *segment) { s.options = make([]byte, 40) },
		"no DF":            func(s *segment) { s.frag = 0 },
	} {
		s := tcp4()
		change(&s)
		if sizes := joined(t, New(batch, true), frames(train(s, 4)...)); !slices.Equal(sizes, []int{4}) {
			t.Errorf("%s: %v, want [4]", name, sizes)
		}
	}
	for name, flags := range map[string]uint8{"FIN": 1, "SYN": 2, "RST": 4, "PSH": flagPSH, "URG": 0x20, "CWR": 0x80} {
		s := tcp4()
		s.flags = flags
		if sizes := joined(t, New(batch, true), frames(train(s, 4)...)); len(sizes) != 4 {
			t.Errorf("%s in all: %v, want 4 frames", name, sizes)
		}
	}
	fixed := train(tcp4(), 4)
	for i := range fixed {
		fixed[i].id = 0
	}
	if sizes := joined(t, New(batch, true), frames(fixed...)); !slices.Equal(sizes, []int{4}) {
		t.Errorf("DF and identification 0: %v, want [4]", sizes)
	}
	for i := range fixed {
		fixed[i].frag = 0
	}
	if sizes := joined(t, New(batch, true), frames(fixed...)); len(sizes) != 4 {
		t.Errorf("identification 0 without DF: %v, want 4 frames", sizes)
	}
	mixed := train(tcp4(), 4)
	mixed[1].id = mixed[0].id
	if sizes := joined(t, New(batch, true), frames(mixed...)); !slices.Equal(sizes, []int{2, 2}) {
		t.Errorf("equal identification, then rising: %v, want [2 2]", sizes)
	}
}

// The first frame's checksum is verified too, when a second one fits.
func TestFirstFrameWithWrongChecksumStaysAlone(t *testing.T) {
	run := train(tcp4(), 4)
	run[0].badSum = true
	if sizes := joined(t, New(batch, true), frames(run...)); !slices.Equal(sizes, []int{1, 3}) {
		t.Errorf("%v, want [1 3]", sizes)
	}
}

func TestPSHIsThatOfTheLastSegment(t *testing.T) {
	run := train(tcp6(), 3)
	run[2].flags = flagPSH
	c, in := New(batch, true), frames(run...)
	out := c.Join(in, oneSender(in))
	if len(out) != 1 || out[0][0][24+40+13] != flagACK|flagPSH {
		t.Errorf("%d frames, flags %#x; want 1 with PSH", len(out), out[0][0][24+40+13])
	}
}

func TestInterleavedFlowsAreJoined(t *testing.T) {
	var in []segment
	for k := range 4 {
		for flow := range MaxFlows {
			s := train(tcp4(), 4)[k]
			s.port += uint16(flow)
			in = append(in, s)
		}
	}
	if sizes := joined(t, New(batch, true), frames(in...)); len(sizes) != MaxFlows {
		t.Errorf("%d flows: %v, want one frame each", MaxFlows, sizes)
	}
}

// One flow more than the limit ends the run that was opened first.
func TestTooManyFlowsEndTheOldest(t *testing.T) {
	var in []segment
	for flow := range MaxFlows + 1 {
		s := tcp4()
		s.port += uint16(flow)
		in = append(in, s)
	}
	last, first := in[MaxFlows], in[0]
	in = append(in, last.following(100), first.following(100))
	sizes := joined(t, New(batch, true), frames(in...))
	if want := append(slices.Repeat([]int{1}, MaxFlows), 2, 1); !slices.Equal(sizes, want) {
		t.Errorf("%v, want %v", sizes, want)
	}
}

// An acknowledgement of one flow does not end the run of another, a fragment does not end
// that of another protocol or host, and ICMPv6 ends none.
func TestOtherTrafficDoesNotEndARun(t *testing.T) {
	for name, other := range map[string]segment{
		"acknowledgement":  {host: 1, port: 2000, ttl: 64},
		"fragment of UDP":  {udp: true, host: 1, ttl: 64, frag: 0x2000, payload: data(8)},
		"fragment of peer": {host: 9, port: 1000, ttl: 64, frag: 0x2000, payload: data(8)},
		"multicast":        {udp: true, group: true, host: 1, port: 1000, ttl: 64, payload: data(8)},
	} {
		run := train(tcp4(), 2)
		if sizes := joined(t, New(batch, true), frames(run[0], other, run[1])); !slices.Equal(sizes, []int{2, 1}) {
			t.Errorf("%s: %v, want [2 1]", name, sizes)
		}
	}
	run := frames(train(tcp6(), 2)...)
	icmp := tcp6().frame()
	icmp[24+6] = 58
	if sizes := joined(t, New(batch, true), [][]byte{run[0], icmp, run[1]}); !slices.Equal(sizes, []int{2, 1}) {
		t.Errorf("ICMPv6: %v, want [2 1]", sizes)
	}
	run = frames(train(tcp6(), 2)...)
	esp := tcp6().frame()
	esp[24+6] = 50
	if sizes := joined(t, New(batch, true), [][]byte{run[0], esp, run[1]}); !slices.Equal(sizes, []int{1, 1, 1}) {
		t.Errorf("a protocol that may hide TCP: %v, want [1 1 1]", sizes)
	}
}

func TestLimits(t *testing.T) {
	s := tcp4()
	s.payload = data(1400)
	// 20 bytes of IPv4 and 32 of TCP leave 46 segments of 1400 bytes and one of 1083.
	if sizes := joined(t, New(batch, true), frames(train(s, 50)...)); !slices.Equal(sizes, []int{46, 4}) {
		t.Errorf("1400 bytes: %v, want [46 4]", sizes)
	}
	for _, last := range []struct{ n, frames int }{{1083, 1}, {1084, 2}} {
		run := train(s, 46)
		run = append(run, run[45].following(last.n))
		if sizes := joined(t, New(batch, true), frames(run...)); len(sizes) != last.frames {
			t.Errorf("%d bytes at the end: %v, want %d frames", last.n, sizes, last.frames)
		}
	}
	if sizes := joined(t, New(100, true), frames(train(udp6(), 100)...)); !slices.Equal(sizes, []int{join.MaxSegments, 36}) {
		t.Errorf("100 datagrams: %v, want [%d 36]", sizes, join.MaxSegments)
	}
}

func TestUDPIsJoinedOnlyIfTheKernelTakesIt(t *testing.T) {
	if sizes := joined(t, New(batch, false), frames(train(udp4(), 3)...)); len(sizes) != 3 {
		t.Errorf("%v, want 3 frames", sizes)
	}
	if sizes := joined(t, New(batch, false), frames(train(tcp4(), 3)...)); len(sizes) != 1 {
		t.Errorf("TCP: %v, want 1 frame", sizes)
	}
}

// Ethernet pads short packets; the padding is no part of a joined frame.
func TestPaddingIsCutOff(t *testing.T) {
	s := udp4()
	s.payload = data(3)
	for name, n := range map[string]int{"equal": 3, "shorter": 1} {
		if sizes := joined(t, New(batch, true), frames(s, s.following(n))); !slices.Equal(sizes, []int{2}) {
			t.Errorf("%s: %v, want [2]", name, sizes)
		}
	}
}

// A frame that already has an offload, or of a protocol other than IP, passes unchanged.
func TestOtherFramesPass(t *testing.T) {
	run := frames(train(tcp4(), 4)...)
	run[1][0] = 1
	run[2][1] = 1
	arp := append([]byte{}, run[3]...)
	arp[23] = 6
	in := append(run, arp, nil, make([]byte, 10), run[0][:43], run[0][:44], run[0][:60])
	if sizes := joined(t, New(batch, true), in); len(sizes) != len(in) {
		t.Errorf("%v, want %d frames", sizes, len(in))
	}
}

func TestJoinAllocatesNothing(t *testing.T) {
	c, in := New(batch, true), mixed()
	backup, from := clone(in), oneSender(in)
	if n := testing.AllocsPerRun(100, func() {
		c.Join(in, from)
		for i := range in {
			copy(in[i], backup[i])
		}
	}); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

// mixed returns a batch of every protocol, and some frames that cannot be joined.
func mixed() [][]byte {
	var in []segment
	for i, s := range []segment{tcp4(), tcp6(), udp4(), udp6()} {
		in = append(in, train(s, 10+i)...)
	}
	odd := tcp4()
	odd.ipOptions = make([]byte, 4)
	return frames(append(in, odd, tcp4(), segment{host: 1, port: 5})...)
}

func clone(in [][]byte) (out [][]byte) {
	for _, f := range in {
		out = append(out, bytes.Clone(f))
	}
	return out
}

// The property: for any batch, join's checks hold.
func batches(t *rapid.T) {
	c := New(batch, rapid.Bool().Draw(t, "UDP"))
	flows := make([]segment, rapid.IntRange(1, MaxFlows+3).Draw(t, "flows"))
	for i := range flows {
		s := &flows[i]
		s.ipv6, s.udp = rapid.Bool().Draw(t, "IPv6"), rapid.Bool().Draw(t, "is UDP")
		s.host, s.port = uint8(rapid.IntRange(1, 2).Draw(t, "host")), uint16(rapid.IntRange(1, 8).Draw(t, "port"))
		s.ttl, s.seq, s.id = 64, rapid.Uint32().Draw(t, "seq"), rapid.Uint16().Draw(t, "id")
		s.frag = rapid.SampledFrom([]uint16{0, 0x4000}).Draw(t, "DF")
		s.options = make([]byte, 4*rapid.IntRange(0, 10).Draw(t, "options"))
		s.payload = data(rapid.IntRange(1, 40).Draw(t, "size"))
		s.verifiedByHW = rapid.Bool().Draw(t, "verified")
	}
	for range 2 { // no state may pass from one batch to the next
		var in [][]byte
		for range rapid.IntRange(0, batch).Draw(t, "frames") {
			s := &flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
			now := *s
			mutate(t, &now)
			in = append(in, now.frame())
			full := len(s.payload)
			s.payload = now.payload
			*s = s.following(full)
		}
		joined(t, c, in)
	}
}

// mutate changes something in some segments.
func mutate(t *rapid.T, s *segment) {
	changes := []func(){
		func() {}, func() {}, func() {}, func() {}, func() {}, func() {},
		func() { s.payload = data(rapid.IntRange(0, 45).Draw(t, "size")) },
		func() { s.flags = rapid.Uint8().Draw(t, "flags") },
		func() { s.flags = flagPSH },
		func() { s.ttl-- },
		func() { s.tos = rapid.Uint8().Draw(t, "tos") },
		func() { s.label = 7 },
		func() { s.id = rapid.Uint16Range(0, 3).Draw(t, "id") },
		func() { s.frag = rapid.SampledFrom([]uint16{0, 0x4000, 0x2000, 3, 0x8000}).Draw(t, "fragment") },
		func() { s.ipOptions = make([]byte, 4) },
		func() { s.ext = []byte{6, 0, 1, 4, 0, 0, 0, 0} },
		func() { s.seq = rapid.Uint32().Draw(t, "seq") },
		func() { s.ack++ },
		func() { s.window++ },
		func() { s.urg++ },
		func() { s.options = append([]byte{8, 10, 1, 1}, s.options[:len(s.options)/8*4]...) },
		func() { s.badSum, s.verifiedByHW = true, false },
		func() { s.badIPSum, s.verifiedByHW = true, false },
		func() { s.noSum, s.verifiedByHW = true, false },
		func() { s.noACK = true },
		func() { s.group = true },
		func() { s.mac = 9 },
		func() { s.reserved = 1 },
		func() { s.longerUDP, s.verifiedByHW = 1, false },
		func() { s.longer, s.verifiedByHW = rapid.IntRange(-3, 3).Draw(t, "longer"), false },
		func() { s.padding = data(rapid.IntRange(1, 5).Draw(t, "padding")) },
	}
	changes[rapid.IntRange(0, len(changes)-1).Draw(t, "change")]()
}

func TestSegmentedAgainEqualsTheInput(t *testing.T) { rapid.Check(t, batches) }

// FuzzJoin makes batches of raw bytes. A byte before each frame is its length, another one
// selects what is corrected in it, so that the fuzzer need not find checksums.
func FuzzJoin(f *testing.F) {
	for _, s := range []segment{tcp4(), tcp6(), udp4(), udp6()} {
		var in []byte
		for _, frame := range frames(train(s, 3)...) {
			in = append(append(in, byte(len(frame)), 0xff), frame...)
		}
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var out [][]byte
		for len(in) > 2 && len(out) < batch {
			n := min(int(in[0]), len(in)-2)
			frame := bytes.Clone(in[2 : 2+n])
			repair(frame, in[1])
			out, in = append(out, frame), in[2+n:]
		}
		joined(t, New(batch, true), out)
	})
}

// repair corrects checksums and lengths of a frame.
func repair(f []byte, what byte) {
	if len(f) < 10+14+40+20 {
		return
	}
	f[0], f[1] = 0, 0 // a device verifies only what is correct
	ipv4 := f[22] == 8 && f[23] == 0
	transport, addrs, proto := 64, f[32:64], f[30]
	if ipv4 {
		transport, addrs, proto = 44, f[36:44], f[33]
	}
	if what&1 != 0 && ipv4 {
		binary.BigEndian.PutUint16(f[26:], uint16(len(f)-24))
	} else if what&1 != 0 {
		binary.BigEndian.PutUint16(f[28:], uint16(len(f)-64))
	}
	if what&2 != 0 && ipv4 {
		f[34], f[35] = 0, 0
		binary.BigEndian.PutUint16(f[34:], ^naive(f[24:44], 0))
	}
	t := f[transport:]
	at := 16
	if proto == join.UDP {
		at = 6
		binary.BigEndian.PutUint16(t[4:], uint16(len(t)))
	}
	if what&4 != 0 {
		t[at], t[at+1] = 0, 0
		binary.BigEndian.PutUint16(t[at:], ^naive(t, naive(addrs, naive([]byte{0, proto, byte(len(t) >> 8), byte(len(t))}, 0))))
	}
}

// BenchmarkJoin joins batches of one flow. Its time is that of one batch; the rate counts the
// whole frames.
func BenchmarkJoin(b *testing.B) {
	for name, first := range map[string]func() segment{"TCP": tcp4, "UDP6": udp6} {
		for _, size := range []int{64, 1400, 2000} {
			for _, verified := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/verified=%t", name, size, verified), func(b *testing.B) {
					s := first()
					s.payload, s.verifiedByHW = data(size), verified
					benchmark(b, frames(train(s, batch)...))
				})
			}
		}
	}
}

func benchmark(b *testing.B, in [][]byte) {
	const headers = 24 + 40 + 40
	c, backup, from := New(batch, true), clone(in), oneSender(in)
	b.SetBytes(int64(len(in) * len(in[0])))
	b.ReportAllocs()
	for b.Loop() {
		for k := range c.Join(in, from) {
			first := c.Inputs(k)[0]
			copy(in[first][:min(headers, len(in[first]))], backup[first]) // undo the changes
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(in)), "ns/frame")
}

// BenchmarkAlone passes a batch of acknowledgements, each of another flow.
func BenchmarkAlone(b *testing.B) {
	var in []segment
	for i := range batch {
		in = append(in, segment{host: uint8(i), port: 1, ttl: 64})
	}
	benchmark(b, frames(in...))
}
