package vnet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"ipoibd/hca/segment"
	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/vnet"
)

// The tests of this file compare with the kernel: a packet socket passes it the same frames, with
// the same virtio headers, for a veth device without offloads, and it cuts them itself.

const (
	patience  = 20 * time.Second // only a failing test waits that long
	etherLen  = 14
	protoTCP  = unix.IPPROTO_TCP
	protoUDP  = unix.IPPROTO_UDP
	flagFIN   = 0x01
	flagSYN   = 0x02
	flagRST   = 0x04
	flagPSH   = 0x08
	flagACK   = 0x10
	flagURG   = 0x20
	flagECE   = 0x40
	flagCWR   = 0x80
	endMarker = 0x88b5 // EtherType of the last frame (IEEE 802, local experiments)
)

// large describes a frame that is to be segmented. The zero value is TCP over IPv4.
type large struct {
	ipv6, udp  bool
	tos, ttl   uint8
	id, frag   uint16
	ipOptions  []byte
	ext        []byte // IPv6 extension headers: each begins with the type of the next one, the last with 0
	extType    uint8  // of the first one
	seq        uint32
	flags, low uint8 // of TCP; low are the bits next to its length, one of which is AE
	urgent     uint16
	options    []byte
	payload    int
	mss        int
	noCsum     bool
	gso        vnet.GSOType // 0: as the protocol requires
	whole      bool         // not to be segmented
	field      uint16       // flipped bits of the partial checksum
	total      int          // added to the length field of IP
}

// build returns the virtio header and the frame. It shares no code with the packages under test.
func (l large) build() (vnet.Header, []byte) {
	l4 := make([]byte, 20, 20+len(l.options)+l.payload)
	proto, sumAt := byte(protoTCP), 16
	if l.udp {
		l4, proto, sumAt = make([]byte, 8, 8+l.payload), protoUDP, 6
		binary.BigEndian.PutUint16(l4[4:], uint16(8+l.payload))
	} else {
		l4 = append(l4, l.options...)
		binary.BigEndian.PutUint32(l4[4:], l.seq)
		binary.BigEndian.PutUint32(l4[8:], 77)
		l4[12], l4[13] = byte(len(l4)/4)<<4|l.low, l.flags|flagACK
		binary.BigEndian.PutUint16(l4[14:], 500)
		binary.BigEndian.PutUint16(l4[18:], l.urgent)
	}
	copy(l4, "\x30\x39\x00\x50")
	headers := len(l4)
	for i := range l.payload {
		l4 = append(l4, byte(i*7+i>>8))
	}
	ip := append(make([]byte, 20), l.ipOptions...)
	typ, addrs := uint16(0x0800), ip[12:20]
	if l.ipv6 {
		typ, ip = 0x86dd, append(make([]byte, 40), l.ext...)
		addrs = ip[8:40]
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(l.tos)<<20|0x12345)
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l.ext)+len(l4)+l.total))
		copy(addrs, "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02")
		if ip[6], ip[7] = proto, l.ttl; len(l.ext) > 0 {
			ip[6] = l.extType
			ip[40] = proto
		}
	} else {
		ip[0], ip[1], ip[8], ip[9] = 0x40|byte(len(ip)/4), l.tos, l.ttl, proto
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)+l.total))
		binary.BigEndian.PutUint16(ip[4:], l.id)
		binary.BigEndian.PutUint16(ip[6:], l.frag)
		copy(addrs, "\x0a\x00\x00\x01\x0a\x00\x00\x02")
		binary.BigEndian.PutUint16(ip[10:], ^add(ip, 0))
	}
	binary.BigEndian.PutUint16(l4[sumAt:], add(addrs, add([]byte{0, proto, byte(len(l4) >> 8), byte(len(l4))}, 0))^l.field)
	frame := binary.BigEndian.AppendUint16([]byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01"), typ)
	h := vnet.Header{CsumStart: uint16(etherLen + len(ip)), CsumOffset: uint16(sumAt)}
	if !l.noCsum {
		h.Flags = vnet.NeedsCsum
	} else {
		h.CsumStart, h.CsumOffset = 0, 0
	}
	if !l.whole {
		h.HdrLen, h.GSOSize, h.GSOType = uint16(etherLen+len(ip)+headers), uint16(l.mss), vnet.GSOTCPv4
		switch {
		case l.gso != 0:
			h.GSOType = l.gso
		case l.udp:
			h.GSOType = vnet.GSOUDPL4
		case l.ipv6:
			h.GSOType = vnet.GSOTCPv6
		}
	}
	return h, slices.Concat(frame, ip, l4)
}

// add returns the ones' complement sum of big-endian words, one by one.
func add(b []byte, sum uint16) uint16 {
	s := uint32(sum)
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i%2))
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// ours returns the frames that the daemon makes of a frame, as package ud and a device do, or the
// reason why it drops the frame.
func ours(h vnet.Header, frame []byte) (out [][]byte, err error) {
	frame = bytes.Clone(frame)
	headers, err := h.Check(frame)
	if err != nil {
		return nil, err
	}
	if h.GSOType == vnet.GSONone {
		h.Complete(frame)
		return [][]byte{frame}, nil
	}
	var plan segment.Plan
	mss := min(int(h.GSOSize), len(frame)-headers)
	if err := plan.Cut(frame[etherLen:headers], 0, len(frame)-headers, mss); err != nil {
		return nil, err
	}
	for i := range plan.Segments() {
		off, n := plan.Payload(i)
		data := frame[headers+off:][:n]
		f := append(make([]byte, headers), data...)
		copy(f, frame[:etherLen])
		var sum segment.Sum
		sum.Add(data)
		plan.Put(f[etherLen:], i, sum)
		out = append(out, f)
	}
	return out, nil
}

// kernel is a veth pair: what is sent at one end leaves the other one in the form in which it
// would be on a wire.
type kernel struct{ in, out int }

func newKernel(t testing.TB) *kernel {
	t.Helper()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "out", b, "in", 65535)
	for _, ns := range []*nstest.Namespace{a, b} {
		ns.Run("sh", "-c", "for d in out in; do ! ip link show $d >/dev/null 2>&1 || ethtool -K $d tx off tso off gso off tx-udp-segmentation off sg off gro off; done")
	}
	k := &kernel{packetSocket(t, a, "out"), packetSocket(t, b, "in")}
	must(t, unix.SetsockoptInt(k.in, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	must(t, unix.SetsockoptInt(k.out, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	must(t, unix.SetsockoptTimeval(k.out, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	return k
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// packetSocket returns a socket for all frames of an interface.
func packetSocket(t testing.TB, ns *nstest.Namespace, name string) (fd int) {
	t.Helper()
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
	ns.Do(func() {
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		must(t, err)
		dev, err := net.InterfaceByName(name)
		must(t, err)
		must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// write sends a frame through a packet socket.
func write(fd int, h vnet.Header, frame []byte) error {
	b := make([]byte, vnet.HeaderLen, vnet.HeaderLen+len(frame))
	h.Put(b)
	_, err := unix.Write(fd, append(b, frame...))
	return err
}

// marker returns a frame that is sent behind another one, to see when that has arrived.
func marker(frame []byte) []byte {
	end := binary.BigEndian.AppendUint16(bytes.Clone(frame[:12]), endMarker)
	return append(end, make([]byte, 46)...)
}

// cut returns the frames that the kernel makes of a frame, or the error with which it refuses it.
func (k *kernel) cut(t testing.TB, h vnet.Header, frame []byte) (out [][]byte, err error) {
	t.Helper()
	nstest.OnOneCPU(t)
	err = write(k.in, h, frame)
	must(t, write(k.in, vnet.Header{}, marker(frame)))
	buf := make([]byte, 1<<17)
	for {
		n, e := unix.Read(k.out, buf)
		if errors.Is(e, unix.EINTR) { // a signal of Go's scheduler
			continue
		}
		must(t, e)
		switch {
		case binary.BigEndian.Uint16(buf[12:]) == endMarker:
			return out, err
		case bytes.Equal(buf[:12], frame[:12]): // not of the kernel itself
			out = append(out, bytes.Clone(buf[:n]))
		}
	}
}

// compare checks that the daemon makes the same frames of a frame as the kernel.
func (k *kernel) compare(t testing.TB, l large) {
	t.Helper()
	h, frame := l.build()
	want, refused := k.cut(t, h, frame)
	got, err := ours(h, frame)
	if refused != nil || err != nil {
		t.Errorf("refused: %v by the kernel, %v by the daemon", refused, err)
		return
	}
	requireEqual(t, got, want)
	if len(l.ext) > 0 {
		return
	}
	h.Flags, h.CsumStart, h.CsumOffset = vnet.DataValid, 0, 0 // a device has verified the checksum
	if got, err = ours(h, frame); err != nil {
		t.Errorf("verified: %v", err)
	}
	requireEqual(t, got, want)
}

func requireEqual(t testing.TB, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d frames, the kernel makes %d", len(got), len(want))
		return
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			const shown = 120
			t.Errorf("frame %d of %d, %d bytes, the kernel's has %d:\n got %x\nwant %x", i, len(got), len(got[i]), len(want[i]), got[i][:min(shown, len(got[i]))], want[i][:min(shown, len(want[i]))])
		}
	}
}

// Options of TCP (RFC 7323, 2018), and extension headers of IPv6 (RFC 8200).
var (
	timestamps = []byte("\x01\x01\x08\x0a\x00\x01\x02\x03\x04\x05\x06\x07")
	sack       = []byte("\x01\x01\x05\x0a\x00\x00\x10\x00\x00\x00\x20\x00")
	padded     = []byte("\x00\x00\x01\x04\x00\x00\x00\x00") // hop-by-hop or destination options with padding only
	alert      = []byte("\x94\x04\x00\x00")                 // of IPv4 (RFC 2113)
)

// What the daemon makes of a large frame is bit for bit what the kernel makes of it.
func TestCutsLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k := newKernel(t)
	cases := map[string]large{
		"plain":                   {},
		"PSH":                     {flags: flagPSH},
		"FIN":                     {flags: flagFIN},
		"FIN and PSH":             {flags: flagFIN | flagPSH},
		"CWR":                     {flags: flagCWR},
		"ECE":                     {flags: flagECE},
		"CWR, ECE, FIN and PSH":   {flags: flagCWR | flagECE | flagFIN | flagPSH},
		"AE and reserved bits":    {low: 0x0f},
		"urgent pointer, no URG":  {urgent: 1500},
		"ECN":                     {tos: 0x03},
		"TOS":                     {tos: 0xb8},
		"TTL 1":                   {ttl: 1},
		"DF":                      {frag: 0x4000},
		"DF, ID 0":                {frag: 0x4000, id: 0},
		"ID wraps":                {id: 0xfffe},
		"sequence number wraps":   {seq: 0xfffffc00},
		"timestamps":              {options: timestamps},
		"SACK":                    {options: sack},
		"timestamps and SACK":     {options: slices.Concat(timestamps, sack)},
		"all options":             {options: slices.Concat(timestamps, sack, timestamps, []byte{1, 1, 1, 0})},
		"IPv4 options":            {ipOptions: alert},
		"all IPv4 options":        {ipOptions: bytes.Repeat([]byte{1}, 40)},
		"hop-by-hop options":      {ipv6: true, ext: padded, extType: 0},
		"destination options":     {ipv6: true, ext: padded, extType: 60},
		"IPv6":                    {ipv6: true},
		"IPv6, class":             {ipv6: true, tos: 0xbb},
		"length field of a pad":   {total: -3},
		"length field is too big": {total: 9},
	}
	for name, l := range cases {
		for _, v := range []struct{ ipv6, udp bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
			if l.ipv6 && !v.ipv6 || l.udp && !v.udp || v.ipv6 && (l.ipOptions != nil || l.frag != 0 || l.id != 0) ||
				v.udp && (l.flags != 0 || l.low != 0 || l.urgent != 0 || l.seq != 0 || l.options != nil) {
				continue
			}
			l := l
			l.ipv6, l.udp, l.ttl = v.ipv6, v.udp, max(l.ttl, 64*(1-min(1, l.ttl)))
			for _, sizes := range [][2]int{{2, 1}, {1449, 1448}, {1447 * 2, 1447}, {1448*2 + 1, 1448}, {1448*3 - 1, 1448}, {10000, 101}} {
				l.payload, l.mss = sizes[0], sizes[1]
				t.Run(fmt.Sprintf("%s/ipv6=%t/udp=%t/%d by %d", name, l.ipv6, l.udp, l.payload, l.mss), func(t *testing.T) { k.compare(t, l) })
			}
		}
	}
}

// The longest frame, and a frame of the most segments that fit, are cut like the kernel cuts them.
func TestCutsLongFramesLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k := newKernel(t)
	const longest = 1<<16 - 1 - etherLen
	for _, ipv6 := range []bool{false, true} {
		headers := 40
		if ipv6 {
			headers = 60
		}
		for _, mss := range []int{70, 500, 1448, 9000, longest - headers - 1} {
			k.compare(t, large{ipv6: ipv6, ttl: 64, flags: flagPSH | flagCWR, payload: longest - headers, mss: mss})
		}
	}
}

// Any large frame is cut like the kernel cuts it.
func TestCutsAnyFrameLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k := newKernel(t)
	rapid.Check(t, func(rt *rapid.T) {
		l := large{
			ipv6: rapid.Bool().Draw(rt, "ipv6"), udp: rapid.Bool().Draw(rt, "udp"), tos: rapid.Byte().Draw(rt, "tos"),
			ttl: rapid.ByteMin(1).Draw(rt, "ttl"), id: rapid.Uint16().Draw(rt, "id"), frag: rapid.SampledFrom([]uint16{0, 0x4000}).Draw(rt, "DF"),
			seq: rapid.Uint32().Draw(rt, "seq"), flags: rapid.Byte().Draw(rt, "flags") &^ (flagSYN | flagRST | flagURG), low: rapid.ByteMax(15).Draw(rt, "low"),
			urgent: rapid.Uint16().Draw(rt, "urgent"), mss: rapid.IntRange(1, 3000).Draw(rt, "mss"),
		}
		l.payload = rapid.IntRange(l.mss+1, l.mss*20).Draw(rt, "payload")
		if rapid.Bool().Draw(rt, "options") {
			l.options = rapid.SampledFrom([][]byte{timestamps, sack, slices.Concat(timestamps, sack)}).Draw(rt, "TCP options")
			l.ext, l.extType = padded, rapid.SampledFrom([]byte{0, 60}).Draw(rt, "extension header")
			l.ipOptions = alert
		}
		if !l.ipv6 {
			l.ext = nil
		}
		h, frame := l.build()
		if len(frame) > 1<<16-1 {
			return
		}
		want, refused := k.cut(t, h, frame)
		got, err := ours(h, frame)
		if refused != nil || err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			rt.Errorf("%+v: %d frames, %v; the kernel makes %d, %v", l, len(got), err, len(want), refused)
		}
	})
}

// host is a TAP in a namespace, as the daemon uses it.
type host struct {
	tap  *link.TAP
	sock int // of the TAP's interface
	bufs [][]byte
}

func newHost(t testing.TB) *host {
	t.Helper()
	ns, h := nstest.New(t), &host{}
	ns.Do(func() {
		var err error
		h.tap, _, err = link.Open(link.Spec{Name: "ib0", MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 65000})
		must(t, err)
	})
	t.Cleanup(func() { must(t, h.tap.Close()) })
	_, err := h.tap.SetOffloads(link.AllOffloads)
	must(t, err)
	must(t, h.tap.SetCarrier(true))
	ns.Run("ip", "link", "set", "ib0", "up")
	h.sock = packetSocket(t, ns, "ib0")
	must(t, unix.SetsockoptInt(h.sock, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	for range 64 {
		h.bufs = append(h.bufs, make([]byte, 1<<17))
	}
	return h
}

// cut returns the frames that the daemon makes of what the kernel passes to it, and the reasons for
// which it drops frames.
func (x *host) cut(t testing.TB, h vnet.Header, frame []byte) (out [][]byte, drops []error) {
	t.Helper()
	_ = write(x.sock, h, frame)
	must(t, write(x.sock, vnet.Header{}, marker(frame)))
	wake := time.AfterFunc(patience, x.tap.Wake)
	defer wake.Stop()
	sizes := make([]int, len(x.bufs))
	for {
		n, err := x.tap.ReadBatch(x.bufs, sizes)
		must(t, err)
		if n == 0 {
			t.Fatal("the last frame did not arrive")
		}
		for i := range n {
			b := x.bufs[i][:sizes[i]]
			passed, err := vnet.Parse(b)
			must(t, err)
			switch f := b[vnet.HeaderLen:]; {
			case binary.BigEndian.Uint16(f[12:]) == endMarker:
				return out, drops
			case !bytes.Equal(f[:12], frame[:12]): // of the kernel itself
			default:
				list, err := ours(passed, f)
				if out = append(out, list...); err != nil {
					drops = append(drops, fmt.Errorf("%+v: %w", passed, err))
				}
			}
		}
	}
}

// Every combination of flags, segmentation and protocol that a process may request of the kernel
// reaches the wire as if the kernel alone had handled it.
func TestEveryOffloadLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k, x := newKernel(t), newHost(t)
	same := func(what string, h vnet.Header, frame []byte) {
		t.Helper()
		want, _ := k.cut(t, h, frame)
		got, drops := x.cut(t, h, frame)
		if len(drops) != 0 || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%s: dropped %v", what, drops)
			requireEqual(t, got, want)
		}
	}
	for _, v := range []struct{ ipv6, udp bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		for _, flags := range []vnet.Flags{0, vnet.NeedsCsum, vnet.DataValid, vnet.NeedsCsum | vnet.DataValid} {
			for _, gso := range []vnet.GSOType{vnet.GSONone, vnet.GSOTCPv4, 2, vnet.GSOUDP, vnet.GSOTCPv6, vnet.GSOUDPL4, 6, vnet.GSOTCPv4 | vnet.GSOECN, vnet.GSOTCPv6 | vnet.GSOECN, vnet.GSOUDPL4 | vnet.GSOECN} {
				for _, payload := range []int{0, 1, 999, 1000, 1001, 2500} {
					if v.ipv6 && gso == vnet.GSOUDP && payload > 500 {
						continue // the kernel chooses the identification of the fragments at random
					}
					h, frame := large{ipv6: v.ipv6, udp: v.udp, ttl: 64, payload: payload, mss: 1000}.build()
					h.Flags, h.GSOType = flags, gso
					same(fmt.Sprintf("IPv6 %t, UDP %t, flags %d, type %#x, payload %d", v.ipv6, v.udp, flags, gso, payload), h, frame)
				}
			}
		}
	}
	for name, l := range map[string]large{
		"reserved bit of IPv4":     {frag: 0x8000},
		"IPv6 routing header":      {ipv6: true, ext: []byte("\x00\x00\x00\x00\x00\x00\x00\x00"), extType: 43},
		"IPv6 fragment header":     {ipv6: true, ext: make([]byte, 8), extType: 44},
		"IPv6 mobility header":     {ipv6: true, ext: make([]byte, 8), extType: 135},
		"IPv6, long options":       {ipv6: true, ext: append([]byte("\x00\x01\x01\x0c"), make([]byte, 12)...), extType: 60},
		"one segment with SYN":     {flags: flagSYN, mss: 3000},
		"one segment with RST":     {flags: flagRST, mss: 3000},
		"fragment, not to be cut":  {frag: 0x2000, whole: true},
		"wrong length, not cut":    {total: -5, whole: true},
		"ECN, CWR and PSH":         {tos: 1, flags: flagCWR | flagPSH | flagECE},
		"UDP, not to be cut":       {udp: true, whole: true},
		"UDP without any checksum": {udp: true, whole: true, noCsum: true},
	} {
		if l.ttl, l.payload = 64, 2500; l.mss == 0 {
			l.mss = 1000
		}
		h, frame := l.build()
		same(name, h, frame)
	}
	for name, outer := range map[string]string{ // an inner packet whose checksum is partial
		"IP in IP": "\x45\x00\x00\x00\x00\x00\x00\x00\x40\x04\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02",
		"GRE":      "\x45\x00\x00\x00\x00\x00\x00\x00\x40\x2f\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x00\x00\x08\x00",
		"UDP":      "\x45\x00\x00\x00\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x12\xb5\x12\xb5\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x07\x00",
	} {
		h, inner := large{ttl: 64, payload: 700, whole: true}.build()
		frame := slices.Concat(inner[:etherLen], []byte(outer), inner[etherLen:])
		binary.BigEndian.PutUint16(frame[etherLen+2:], uint16(len(frame)-etherLen))
		h.CsumStart += uint16(len(outer))
		same(name, h, frame)
	}
}

// A checksum that adds up to zero is written as the kernel writes it: as 0 in TCP, and as 0xffff in
// UDP and wherever the frame is not cut.
func TestZeroChecksumsLikeTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k := newKernel(t)
	for _, udp := range []bool{false, true} {
		for _, whole := range []bool{false, true} {
			l := large{udp: udp, whole: whole, ttl: 64, payload: 2000, mss: 1000}
			h, frame := l.build()
			end, at := int(h.CsumStart)+1000, int(h.CsumStart+h.CsumOffset)
			if whole {
				end = len(frame) - 2
			}
			// The word at end changes the sum of the first frame. Make that sum zero.
			binary.BigEndian.PutUint16(frame[end:], 0)
			first, err := ours(h, frame)
			must(t, err)
			binary.BigEndian.PutUint16(frame[end:], binary.BigEndian.Uint16(first[0][at:]))
			got, err := ours(h, frame)
			must(t, err)
			want, err := k.cut(t, h, frame)
			must(t, err)
			requireEqual(t, got, want)
			if sum := binary.BigEndian.Uint16(got[0][at:]); sum != 0xffff && (udp || whole || sum != 0) {
				t.Errorf("UDP %t, whole %t: the checksum is %#x, not a zero", udp, whole, sum)
			}
		}
	}
}

// The daemon differs from the kernel on purpose where no host sends such a frame; see doc.go of
// package segment.
func TestDifferencesFromTheKernel(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	k, x := newKernel(t), newHost(t)
	for name, c := range map[string]struct {
		large
		dropped error
	}{
		"SYN":                    {large{flags: flagSYN}, vnet.ErrSYN},
		"RST":                    {large{flags: flagRST}, vnet.ErrSYN},
		"first fragment":         {large{frag: 0x2000}, vnet.ErrNetwork},
		"later fragment":         {large{frag: 5}, vnet.ErrNetwork},
		"urgent data":            {large{flags: flagURG, urgent: 1500}, nil},
		"wrong partial checksum": {large{field: 0x1234}, nil},
	} {
		c.ttl, c.payload, c.mss = 64, 2500, 1000
		h, frame := c.build()
		kernel, err := k.cut(t, h, frame)
		must(t, err)
		got, drops := x.cut(t, h, frame)
		switch {
		case slices.EqualFunc(got, kernel, bytes.Equal):
			t.Errorf("%s: no difference", name)
		case c.dropped == nil && (len(drops) != 0 || len(got) != len(kernel)), c.dropped != nil && (len(got) != 0 || len(drops) != 1 || !errors.Is(drops[0], c.dropped)):
			t.Errorf("%s: %d frames, dropped %v; want %v", name, len(got), drops, c.dropped)
		}
	}
}
