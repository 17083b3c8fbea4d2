package coalesce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/vnet"
)

// The tests of this file compare with the kernel's GRO: a veth device receives the same frames in
// one poll, and a packet socket shows what it passes to the host.

const (
	// groHold is how long the device holds frames before it polls them. The frames of a round are
	// sent within half of it.
	groHold = 200 * time.Millisecond
	// groFlows bounds the flows of a round: GRO holds no more in one bucket of its table
	// (MAX_GRO_SKBS), and frames of a packet socket are all in the same one.
	groFlows = 7
	// groSegments is the number of frames of a flow. One poll takes 64 frames (NAPI_POLL_WEIGHT).
	groSegments = 6
	// groMarker is the EtherType of frames that show when a poll was (IEEE 802, local experiments).
	groMarker = 0x88b5
)

// gro is a veth pair whose far end joins what it receives.
type gro struct{ in, out int }

func newGRO(t *testing.T) *gro {
	t.Helper()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "src", b, "dst", 9000)
	a.Run("ethtool", "-K", "src", "tx", "off", "gso", "off", "tso", "off")
	b.Run("ethtool", "-K", "dst", "rx", "off", "gro", "on", "rx-udp-gro-forwarding", "on")
	dir := t.TempDir()
	b.Do(func() { must(t, unix.Mount("sysfs", dir, "sysfs", 0, "")) })
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for file, value := range map[string]int64{"napi_defer_hard_irqs": 1 << 30, "gro_flush_timeout": groHold.Nanoseconds()} {
		must(t, os.WriteFile(dir+"/class/net/dst/"+file, fmt.Append(nil, value), 0))
	}
	g := &gro{packetSocket(t, a, "src"), packetSocket(t, b, "dst")}
	must(t, unix.SetsockoptInt(g.out, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	must(t, unix.SetsockoptInt(g.out, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
	must(t, unix.SetsockoptInt(g.out, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20))
	must(t, unix.SetsockoptTimeval(g.out, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	return g
}

// join returns what the kernel makes of frames, by the number of their source host. Frames are
// sent right behind a poll, so that the next one takes all of them.
func (g *gro) join(t *testing.T, frames [][]byte) map[uint8][][]byte {
	t.Helper()
	marker := append(bytes.Clone(frames[0][10:22]), groMarker>>8, groMarker&0xff)
	marker = append(marker, make([]byte, 46)...)
	for {
		g.send(t, marker)
		f, polled := g.receive(t)
		for binary.BigEndian.Uint16(f[22:]) != groMarker {
			f, polled = g.receive(t)
		}
		for _, f := range frames {
			g.send(t, f[10:])
		}
		took := time.Since(polled)
		out := map[uint8][][]byte{}
		for n := 0; n < len(frames); {
			f, _ := g.receive(t)
			out[hostOf(f)] = append(out[hostOf(f)], f)
			n += segments(f)
		}
		if took < groHold/2 {
			return out
		}
		t.Logf("the last of %d frames was sent %v after a poll; sending them again", len(frames), took)
	}
}

func (g *gro) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := unix.Write(g.in, frame); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next frame of the tests, with its virtio header, and when it was polled.
func (g *gro) receive(t *testing.T) (frame []byte, polled time.Time) {
	t.Helper()
	b, control := make([]byte, 1<<17), make([]byte, 128)
	for {
		n, size, _, _, err := unix.Recvmsg(g.out, b, control, 0)
		if errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
			continue
		}
		if err != nil {
			t.Fatalf("no frame arrived: %v", err)
		}
		if !bytes.HasPrefix(b[vnet.HeaderLen:n], []byte("\x02\x00\x00\x00\x00\x01")) {
			continue // of the kernel itself
		}
		messages, err := unix.ParseSocketControlMessage(control[:size])
		must(t, err)
		for _, m := range messages {
			if m.Header.Type == unix.SCM_TIMESTAMPNS {
				polled = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
		return b[:n], polled
	}
}

// segments returns how many segments a frame holds. The kernel's hdr_len is the length of what
// is in one piece, which may be more than the headers.
func segments(f []byte) int {
	h, _ := vnet.Parse(f)
	h.GSOType &^= vnet.GSOECN
	headers, err := h.Check(f[vnet.HeaderLen:])
	if err != nil {
		panic(err)
	}
	if headers == 0 {
		return 1
	}
	return (len(f) - vnet.HeaderLen - headers + int(h.GSOSize) - 1) / int(h.GSOSize)
}

// hostOf returns the number of the host that a frame is from.
func hostOf(f []byte) uint8 {
	if f[22] == 0x86 {
		return f[24+23]
	}
	return f[24+15]
}

// groCase is six segments of one flow.
type groCase struct {
	name string
	// change changes the i-th segment.
	change func(i int, s *segment)
	only   func(s segment) bool // the flows to change; nil: all
	// differs has the sizes of our runs where they differ from the kernel's, for the reasons in
	// doc.go; of UDP only, if udp is set.
	differs []int
	udp     bool
}

func isTCP(s segment) bool  { return !s.udp }
func isUDP(s segment) bool  { return s.udp }
func isIPv4(s segment) bool { return !s.ipv6 }
func isIPv6(s segment) bool { return s.ipv6 }
func at(n int, f func(s *segment)) func(int, *segment) {
	return func(i int, s *segment) {
		if i == n {
			f(s)
		}
	}
}

var groCases = []groCase{
	{"plain", func(int, *segment) {}, nil, nil, false},
	{"PSH in the middle", at(2, func(s *segment) { s.flags = flagPSH }), isTCP, nil, false},
	{"PSH last", at(5, func(s *segment) { s.flags = flagPSH }), isTCP, nil, false},
	{"FIN last", at(5, func(s *segment) { s.flags = 1 }), isTCP, []int{5, 1}, false},
	{"CWR first", at(0, func(s *segment) { s.flags = 0x80 }), isTCP, nil, false},
	{"CWR in the middle", at(3, func(s *segment) { s.flags = 0x80 }), isTCP, nil, false},
	{"ECE in all", func(_ int, s *segment) { s.flags = flagECE }, isTCP, nil, false},
	{"ECE in one", at(3, func(s *segment) { s.flags = flagECE }), isTCP, nil, false},
	{"AE in all", func(_ int, s *segment) { s.reserved = 1 }, isTCP, nil, false},
	{"AE in one", at(3, func(s *segment) { s.reserved = 1 }), isTCP, nil, false},
	{"URG", at(3, func(s *segment) { s.flags, s.urg = 0x20, 5 }), isTCP, nil, false},
	{"urgent pointer without URG", at(3, func(s *segment) { s.urg = 5 }), isTCP, []int{3, 1, 2}, false},
	{"SYN", at(3, func(s *segment) { s.flags = 2 }), isTCP, nil, false},
	{"RST", at(3, func(s *segment) { s.flags = 4 }), isTCP, nil, false},
	{"timestamps", func(_ int, s *segment) { s.options = []byte("\x01\x01\x08\x0a\x00\x01\x02\x03\x04\x05\x06\x07") }, isTCP, nil, false},
	{"timestamps that rise", func(i int, s *segment) { s.options = []byte{1, 1, 8, 10, 0, 1, 2, byte(i / 3), 4, 5, 6, 7} }, isTCP, nil, false},
	{"SACK in all", func(_ int, s *segment) { s.options = []byte("\x01\x01\x05\x0a\x00\x00\x10\x00\x00\x00\x20\x00") }, isTCP, nil, false},
	{"SACK in one", at(3, func(s *segment) { s.options = []byte("\x01\x01\x05\x0a\x00\x00\x10\x00\x00\x00\x20\x00") }), isTCP, nil, false},
	{"acknowledgement changes", at(3, func(s *segment) { s.ack++ }), isTCP, nil, false},
	{"window changes", at(3, func(s *segment) { s.window++ }), isTCP, nil, false},
	{"header only", at(3, func(s *segment) { s.payload = nil }), isTCP, nil, false},
	{"a gap", func(i int, s *segment) { s.seq += uint32(i / 3) }, isTCP, nil, false},
	{"a duplicate", at(3, func(s *segment) { s.seq -= 100 }), isTCP, nil, false},
	{"sequence number wraps", func(i int, s *segment) { s.seq = uint32(i*100) - 250 }, isTCP, nil, false},
	{"fixed ID with DF", func(_ int, s *segment) { s.id, s.frag = 7, 0x4000 }, isIPv4, nil, false},
	{"fixed ID without DF", func(_ int, s *segment) { s.id, s.frag = 7, 0 }, isIPv4, []int{1, 1, 1, 1, 1, 1}, false},
	{"rising ID with DF", func(_ int, s *segment) { s.frag = 0x4000 }, isIPv4, nil, false},
	{"rising ID without DF", func(_ int, s *segment) { s.frag = 0 }, isIPv4, nil, false},
	{"ID wraps", func(i int, s *segment) { s.id, s.frag = uint16(i)-3, 0 }, isIPv4, nil, false},
	{"ID with a gap", func(i int, s *segment) { s.id, s.frag = uint16(i+i/3), 0 }, isIPv4, nil, false},
	{"ID with DF, fixed, then rising", func(i int, s *segment) { s.id, s.frag = uint16(max(2, i)), 0x4000 }, isIPv4, nil, false},
	{"ID falls", func(i int, s *segment) { s.id, s.frag = uint16(10-i), 0x4000 }, isIPv4, nil, false},
	{"DF changes", at(3, func(s *segment) { s.frag ^= 0x4000 }), isIPv4, nil, false},
	{"reserved bit", func(_ int, s *segment) { s.frag |= 0x8000 }, isIPv4, nil, false},
	{"fragments", func(_ int, s *segment) { s.frag = 0x2000 }, isIPv4, nil, false},
	{"IPv4 options", func(_ int, s *segment) { s.ipOptions = []byte{0x94, 4, 0, 0} }, isIPv4, nil, false},
	{"TTL changes", at(3, func(s *segment) { s.ttl-- }), nil, nil, false},
	{"TOS changes", at(3, func(s *segment) { s.tos ^= 0xb8 }), nil, nil, false},
	{"CE in one", at(3, func(s *segment) { s.tos |= 3 }), nil, nil, false},
	{"flow label changes", at(3, func(s *segment) { s.label++ }), isIPv6, []int{3, 1, 2}, true},
	{"destination options", func(_ int, s *segment) { s.ext = []byte{6, 0, 1, 4, 0, 0, 0, 0} }, func(s segment) bool { return s.ipv6 && !s.udp }, []int{1, 1, 1, 1, 1, 1}, false},
	{"shorter in the middle", at(3, func(s *segment) { s.payload = s.payload[:50] }), nil, nil, false},
	{"shorter last", at(5, func(s *segment) { s.payload = s.payload[:50] }), nil, nil, false},
	{"longer in the middle", at(3, func(s *segment) { s.payload = append(s.payload, 1) }), nil, nil, false},
	{"one byte", func(_ int, s *segment) { s.payload = s.payload[:1] }, nil, []int{6}, true},
	{"wrong checksum", at(3, func(s *segment) { s.badSum = true }), nil, []int{3, 1, 2}, true},
	{"wrong checksum of IPv4", at(3, func(s *segment) { s.badIPSum = true }), isIPv4, nil, false},
	{"no checksum", func(_ int, s *segment) { s.noSum = true }, isUDP, nil, false},
	{"no checksum in one", at(3, func(s *segment) { s.noSum = true }), isUDP, []int{3, 1, 2}, true},
	{"empty datagram", at(3, func(s *segment) { s.payload = nil }), isUDP, []int{3, 1, 2}, true},
	{"wrong length of UDP", at(3, func(s *segment) { s.longerUDP = -1 }), isUDP, []int{3, 1, 2}, true},
	{"another MAC", at(3, func(s *segment) { s.mac = 9 }), nil, nil, false},
	{"padding", at(3, func(s *segment) { s.padding = []byte{0, 0} }), nil, []int{3, 1, 2}, true},
}

// Of the same frames, the kernel and the daemon join the same, with the exceptions that groCases
// states.
func TestJoinsLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	type sequence struct {
		groCase
		flow   segment
		frames [][]byte
	}
	var all []sequence
	for _, c := range groCases {
		for _, s := range []segment{tcp4(), tcp6(), udp4(), udp6()} {
			if c.only != nil && !c.only(s) {
				continue
			}
			s.host, s.payload = uint8(1+len(all)%groFlows), data(100)
			x := sequence{groCase: c, flow: s}
			for i, s := range train(s, groSegments) {
				s.payload = slices.Clone(s.payload)
				c.change(i, &s)
				x.frames = append(x.frames, s.frame())
			}
			all = append(all, x)
		}
	}
	g := newGRO(t)
	for round := range slices.Chunk(all, groFlows) {
		var in [][]byte
		for i := range groSegments {
			for _, x := range round {
				in = append(in, x.frames[i])
			}
		}
		kernel := g.join(t, in)
		for _, x := range round {
			var theirs, ours []int
			for _, f := range kernel[x.flow.host] {
				theirs = append(theirs, segments(f))
			}
			ours = joined(t, New(batch, true), x.frames)
			what := fmt.Sprintf("%s, IPv6 %t, UDP %t", x.name, x.flow.ipv6, x.flow.udp)
			if x.differs != nil && (x.flow.udp || !x.udp) {
				if t.Logf("%s: the kernel joins %v, the daemon %v", what, theirs, ours); !slices.Equal(ours, x.differs) {
					t.Errorf("%s: joined %v, want %v", what, ours, x.differs)
				}
				continue
			}
			slices.Sort(theirs) // a frame that is not joined passes the others
			if slices.Sort(ours); !slices.Equal(theirs, ours) {
				t.Errorf("%s: joined %v, the kernel %v", what, ours, theirs)
			}
		}
	}
}
