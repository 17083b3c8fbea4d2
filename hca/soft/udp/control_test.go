package udp

import (
	"bytes"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// control4Bytes are the control messages of a received IPv4 datagram on a little-endian
// 64-bit machine.
var control4Bytes = []byte{
	28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, // IP_PKTINFO
	3, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0,
	20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, // IP_TTL
	63, 0, 0, 0, 0, 0, 0, 0,
	17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, // IP_TOS
	0x68, 0, 0, 0, 0, 0, 0, 0,
}

// aligned returns a copy of b that is aligned as a control buffer must be.
func aligned(b []byte) []byte {
	words := make([]uint64, len(b)/8+1)
	out := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(b))
	copy(out, b)
	return out
}

func TestParseControl4(t *testing.T) {
	got := parseControl(aligned(control4Bytes))
	want := seen{dst: netip.MustParseAddr("10.0.0.2"), tos: 0x68, ttl: 63}
	if got != want {
		t.Errorf("parseControl = %+v, want %+v", got, want)
	}
}

// parseControl ignores truncated messages, and parses the complete ones before them.
func TestParseControlTruncated(t *testing.T) {
	whole := parseControl(aligned(control4Bytes))
	for n := range control4Bytes {
		got, want := parseControl(aligned(control4Bytes[:n])), seen{}
		if n >= 28 {
			want.dst = whole.dst
		}
		if n >= 32+20 {
			want.ttl = whole.ttl
		}
		if n >= 32+24+17 {
			want.tos = whole.tos
		}
		if got != want {
			t.Errorf("%d bytes: %+v, want %+v", n, got, want)
		}
	}
}

// parseControl reads the control messages that init lays out for sending.
func TestControl6(t *testing.T) {
	var c control6
	c.init(3)
	addr := netip.MustParseAddr("2001:db8::9")
	c.info.Addr, *c.tclass, *c.hops = addr.As16(), 0x68, 5
	if got, want := parseControl(c.buf[c.at.info:c.at.end]), (seen{dst: addr, tos: 0x68, ttl: 5}); got != want {
		t.Errorf("with hop limit: %+v, want %+v", got, want)
	}
	if got, want := parseControl(c.buf[c.at.info:c.at.ttl]), (seen{dst: addr, tos: 0x68}); got != want {
		t.Errorf("without hop limit: %+v, want %+v", got, want)
	}
}

func TestControl4Layout(t *testing.T) {
	var c control4
	c.init(3)
	*c.size, c.info.Spec_dst, *c.tos, *c.ttl = 0x1234, [4]byte{10, 0, 0, 1}, 0x68, 5
	want := []byte{
		18, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 103, 0, 0, 0,
		0x34, 0x12, 0, 0, 0, 0, 0, 0,
		28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0,
		3, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
		20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
		0x68, 0, 0, 0, 0, 0, 0, 0,
		20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0,
		5, 0, 0, 0, 0, 0, 0, 0,
	}
	for _, k := range []struct {
		pkt      transport.Packet
		from, to int
	}{
		{transport.Packet{TTL: 5, Segs: 2}, 0, 104},
		{transport.Packet{Segs: 2}, 0, 80},
		{transport.Packet{TTL: 5, Segs: 1}, 24, 104},
		{transport.Packet{}, 24, 80},
	} {
		first, n := c.at.of(c.buf[:], &k.pkt)
		if got := unsafe.Slice(first, n); !bytes.Equal(got, want[k.from:k.to]) {
			t.Errorf("TTL %d, %d datagrams: layout\n%v, want\n%v", k.pkt.TTL, k.pkt.Segs, got, want[k.from:k.to])
		}
	}
}

func FuzzParseControl(f *testing.F) {
	f.Add(control4Bytes)
	var c control6
	c.init(3)
	f.Add(c.buf[:])
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := parseControl(aligned(b))
		if s.dst.Is4In6() {
			t.Errorf("destination %v is mapped", s.dst)
		}
	})
}

func TestSockaddr(t *testing.T) {
	var sa sockaddr
	addr4, addr6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fe80::1")
	if n := setAddr4(&sa, addr4, Port); n != 16 {
		t.Errorf("IPv4 length %d, want 16", n)
	}
	raw := (*[28]byte)(unsafe.Pointer(&sa))
	if want := []byte{unix.AF_INET, 0, 0x12, 0xb7, 10, 1, 2, 3}; !bytes.Equal(raw[:8], want) {
		t.Errorf("sockaddr_in %v, want %v", raw[:8], want)
	}
	if a, p := getAddr(&sa); a != addr4 || p != Port {
		t.Errorf("read back %v %d, want %v %d", a, p, addr4, Port)
	}
	if n := setAddr6(&sa, addr6, 5); n != 28 || sa.Scope_id != 5 || sa.Flowinfo != 0 {
		t.Errorf("IPv6 length %d, scope %d, flow %d, want 28, 5, 0", n, sa.Scope_id, sa.Flowinfo)
	}
	if a, p := getAddr(&sa); a != addr6 || p != Port {
		t.Errorf("read back %v %d, want %v %d", a, p, addr6, Port)
	}
	setAddr6(&sa, netip.AddrFrom16(addr4.As16()), 0)
	if a, _ := getAddr(&sa); a != addr4 {
		t.Errorf("mapped address read as %v, want %v", a, addr4)
	}
	sa.Family = unix.AF_UNIX
	if a, _ := getAddr(&sa); a.IsValid() {
		t.Errorf("address %v of a foreign family", a)
	}
}

func TestExtend(t *testing.T) {
	for _, tt := range []struct {
		last uint64
		now  uint32
		want uint64
	}{
		{0, 0, 0},
		{0, 5, 5},
		{5, 5, 5},
		{0xffff_fffe, 1, 0x1_0000_0001},
		{0x3_0000_0007, 9, 0x3_0000_0009},
	} {
		if got := extend(tt.last, tt.now); got != tt.want {
			t.Errorf("extend(%#x, %#x) = %#x, want %#x", tt.last, tt.now, got, tt.want)
		}
	}
}

func TestDropFor(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ENETUNREACH: "tx_drop_no_route", unix.EHOSTUNREACH: "tx_drop_no_route", unix.EMSGSIZE: "tx_drop_too_long",
		unix.ENETDOWN: "tx_drop_link_down", unix.ENODEV: "tx_drop_no_device", unix.EPERM: "tx_drop_forbidden",
		unix.ENOBUFS: "tx_drop_no_buffers", unix.ECONNREFUSED: "tx_drop_refused", unix.EINVAL: "tx_drop_rejected",
	} {
		if got := dropNames[dropFor(errno)]; got != want {
			t.Errorf("the drop for %v is called %q, want %q", errno, got, want)
		}
	}
	named := make(map[string]bool)
	for d, name := range dropNames {
		if name == "" || named[name] {
			t.Errorf("drop %d is called %q, want a unique, non-empty name", d, name)
		}
		named[name] = true
	}
}

func TestSourceFor(t *testing.T) {
	used := make(map[uint16]int)
	for i := range 1000 {
		mac := [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}
		p := sourceFor(mac)
		if p < firstSource || p != sourceFor(mac) {
			t.Fatalf("source port %#x of %x", p, mac)
		}
		used[p]++
	}
	if len(used) < 900 {
		t.Errorf("1000 MACs use only %d source ports", len(used))
	}
}
