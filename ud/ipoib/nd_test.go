package ipoib

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// ndWant holds the contents of the packets of testdata/nd.py.
var ndWant = map[string]struct {
	typ, flags       uint8
	src, dst, target string
	option           uint8
	mac              MAC
	addr             Addr
}{
	"rs":       {133, 0, "fe80::a", "ff02::2", "", 1, macA, addrA},
	"ra":       {134, 0, "fe80::b", "ff02::1", "", 1, macB, addrB},
	"ns":       {135, 0, "2001:db8::a", "ff02::1:ff00:b", "2001:db8::b", 1, macA, addrA},
	"dad":      {135, 0, "::", "ff02::1:ff00:a", "2001:db8::a", 0, MAC{}, Addr{}},
	"na":       {136, 0x60, "2001:db8::b", "2001:db8::a", "2001:db8::b", 2, macB, addrB},
	"na-all":   {136, 0x20, "2001:db8::b", "ff02::1", "2001:db8::b", 2, macB, addrB},
	"redirect": {137, 0, "fe80::b", "2001:db8::a", "fe80::a", 2, macA, addrA},
}

// eachND runs a check with every packet of testdata/nd.py, in both forms.
func eachND(t *testing.T, check func(t *testing.T, name string, form Form, packet []byte)) {
	for formName, form := range formNames {
		for _, name := range ndNames {
			t.Run(name+" "+formName, func(t *testing.T) { check(t, name, form, golden(t, name, form)) })
		}
	}
}

func TestEveryNDTypeHasAPacket(t *testing.T) {
	var types []uint8
	for _, p := range goldens()[FormIPoIB] {
		types = append(types, p[ndType])
	}
	slices.Sort(types)
	if got := slices.Compact(types); !bytes.Equal(got, []byte{133, 134, 135, 136, 137}) {
		t.Errorf("testdata/nd.txt has the types %d", got)
	}
}

func TestParseND(t *testing.T) {
	eachND(t, func(t *testing.T, name string, form Form, packet []byte) {
		got, err := ParseND(append(packet, 0xee, 0xee), form) // padding is ignored
		if err != nil {
			t.Fatal(err)
		}
		want := ndWant[name]
		if got.Type != want.typ || got.Flags != want.flags || got.Src != ip(want.src) || got.Dst != ip(want.dst) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got.Target.IsValid() != (want.target != "") || want.target != "" && got.Target != ip(want.target) {
			t.Errorf("got target %v, want %q", got.Target, want.target)
		}
		if got.Link.Type != want.option {
			t.Errorf("got option %d, want %d", got.Link.Type, want.option)
		}
		checkLink(t, got.Link, form, want.mac, want.addr)
	})
}

// checkLink checks the address of an option, which has one form only.
func checkLink(t *testing.T, link LinkOption, form Form, wantMAC MAC, wantAddr Addr) {
	t.Helper()
	mac, isMAC := link.MAC()
	addr, isAddr := link.IPoIB()
	there := link.Type != OptionNone
	if isMAC != (there && form == FormEther) || isMAC && mac != wantMAC {
		t.Errorf("got %v, %t; want %v", mac, isMAC, wantMAC)
	}
	if isAddr != (there && form == FormIPoIB) || isAddr && addr != wantAddr {
		t.Errorf("got %v, %t; want %v", addr, isAddr, wantAddr)
	}
}

func TestIsND(t *testing.T) {
	eachND(t, func(t *testing.T, _ string, _ Form, packet []byte) {
		if !IsND(packet) {
			t.Error("not recognised")
		}
		for n := range ndType + 1 {
			if IsND(packet[:n]) {
				t.Errorf("recognised with only %d bytes", n)
			}
		}
		for _, off := range []int{0, ipv6NextHeader, ipv6HopLimit, ndType} {
			if IsND(flip(packet, off)) {
				t.Errorf("recognised with a wrong byte %d", off)
			}
		}
	})
}

func TestIsNDTypes(t *testing.T) {
	packet := golden(t, "rs", FormEther)
	for typ := range 256 {
		packet[ndType] = byte(typ)
		if got, want := IsND(packet), typ >= 133 && typ <= 137; got != want {
			t.Errorf("type %d: got %t, want %t", typ, got, want)
		}
	}
}

// TestParseNDTruncated cuts each packet at each byte. The IPv6 length reveals
// every cut. If that length and the checksum are corrected, only a cut between
// two options is undetectable.
func TestParseNDTruncated(t *testing.T) {
	eachND(t, func(t *testing.T, _ string, form Form, packet []byte) {
		bounds := optionBounds(packet)
		for n := range packet {
			if _, err := ParseND(packet[:n], form); !errors.Is(err, ErrTruncated) {
				t.Errorf("%d bytes: got %v, want ErrTruncated", n, err)
			}
			if n < ndFlags {
				continue
			}
			_, err := ParseND(mended(packet[:n]), form)
			if (err == nil) != slices.Contains(bounds, n) {
				t.Errorf("%d bytes, length and checksum corrected: got %v, options start at %d", n, err, bounds)
			}
		}
	})
}

// optionBounds returns the offsets at which an option starts or could follow.
func optionBounds(packet []byte) []int {
	off := ipv6HeaderLen + ndFixedLen(packet[ndType])
	bounds := []int{off}
	for off < len(packet) {
		off += 8 * int(packet[off+1])
		bounds = append(bounds, off)
	}
	return bounds
}

// mended returns a copy with the correct IPv6 length and checksum.
func mended(packet []byte) []byte {
	packet = bytes.Clone(packet)
	finishND(packet)
	return packet
}

// TestParseNDDamaged flips each bit of each packet: the checksum, or a check
// before it, detects every flip except those in the traffic class and flow
// label.
func TestParseNDDamaged(t *testing.T) {
	eachND(t, func(t *testing.T, _ string, form Form, packet []byte) {
		for bit := range 8 * len(packet) {
			if bit >= 4 && bit < 32 {
				continue
			}
			damaged := bytes.Clone(packet)
			damaged[bit/8] ^= 0x80 >> (bit % 8)
			if _, err := ParseND(damaged, form); err == nil {
				t.Errorf("bit %d flipped: no error", bit)
			}
		}
	})
}

func TestParseNDRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		from string // a packet in the IPoIB form
		edit func(p []byte) []byte
		want error
	}{
		{"IPv4", "ns", set(0, 0x45), ErrFormat},
		{"UDP", "ns", set(ipv6NextHeader, 17), ErrFormat},
		{"hop limit 254", "ns", set(ipv6HopLimit, 254), ErrHopLimit},
		{"echo request", "ns", set(ndType, 128), ErrFormat},
		{"code 1", "ns", set(ndCode, 1), ErrFormat},
		{"option of length 0", "ns", set(65, 0), ErrOption},
		{"option longer than the packet", "ns", set(65, 4), ErrOption},
		{"option of Ethernet length", "ns", set(65, 1), ErrOption},
		{"half an option header", "ns", add(0x0e), ErrOption},
		{"option without its content", "ns", add(0x0e, 1), ErrOption},
		{"a second source link-layer address", "ns", add(appendLinkOption(nil, OptionSourceLink, addrB)...), ErrOption},
		{"an ignored option of Ethernet length", "ns", add(2, 1, 2, 0, 0, 0, 0, 0x0b), ErrOption},
		{"RS from the unspecified address with an option", "rs", fill(ipv6Source, 16, 0), ErrInvalid},
		{"RA from afar", "ra", fill(ipv6Source, 1, 0x20), ErrInvalid},
		{"RA from a group", "ra", fill(ipv6Source, 1, 0xff), ErrInvalid},
		{"NS for a group", "ns", fill(ndTarget, 1, 0xff), ErrInvalid},
		{"NS from a group", "ns", fill(ipv6Source, 1, 0xff), ErrInvalid},
		{"probe with an address", "ns", fill(ipv6Source, 16, 0), ErrInvalid},
		{"probe to all nodes", "dad", fill(ipv6Dest+11, 5, 1), ErrInvalid},
		{"NA for a group", "na", fill(ndTarget, 1, 0xff), ErrInvalid},
		{"solicited NA to a group", "na-all", set(ndFlags, 0x60), ErrInvalid},
		{"Redirect from a global address", "redirect", fill(ipv6Source, 1, 0x20), ErrInvalid},
		{"Redirect for a group", "redirect", fill(ndRedirectDest, 1, 0xff), ErrInvalid},
		{"Redirect to a global target", "redirect", fill(ndTarget, 1, 0x20), ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			packet := mended(c.edit(golden(t, c.from, FormIPoIB)))
			if _, err := ParseND(packet, FormIPoIB); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			out, err := TranslateND([]byte("x"), packet, FormIPoIB, FormEther, roomy, known)
			if !errors.Is(err, c.want) || string(out) != "x" {
				t.Errorf("translation: got %q, %v; want %v and dst untouched", out, err, c.want)
			}
		})
	}
}

// set, fill and add are edits of a packet.
func set(off int, b byte) func([]byte) []byte { return fill(off, 1, b) }

func fill(off, n int, b byte) func([]byte) []byte {
	return func(p []byte) []byte {
		copy(p[off:], bytes.Repeat([]byte{b}, n))
		return p
	}
}

func add(b ...byte) func([]byte) []byte {
	return func(p []byte) []byte { return append(p, b...) }
}

// TestParseNDAccepts covers unusual but valid messages.
func TestParseNDAccepts(t *testing.T) {
	for _, c := range []struct {
		name string
		from string // a packet in the IPoIB form
		edit func(p []byte) []byte
	}{
		{"an option that receivers ignore", "ns", add(appendLinkOption(nil, OptionTargetLink, addrB)...)},
		{"an unknown option", "na", add(200, 1, 1, 2, 3, 4, 5, 6)},
		{"solicitation to a unicast address", "ns", func(p []byte) []byte {
			copy(p[ipv6Dest:], p[ndTarget:ndTarget+16])
			return p
		}},
		{"redirect to the destination itself", "redirect", func(p []byte) []byte {
			copy(p[ndTarget:], p[ndRedirectDest:ndRedirectDest+16])
			return p
		}},
		{"a traffic class", "rs", set(0, 0x6e)},
	} {
		if _, err := ParseND(mended(c.edit(golden(t, c.from, FormIPoIB))), FormIPoIB); err != nil {
			t.Errorf("%s: %v, want no error", c.name, err)
		}
	}
}

func TestParseNDWrongChecksum(t *testing.T) {
	packet := golden(t, "na", FormIPoIB)
	sum := binary.BigEndian.Uint16(packet[ndChecksum:])
	for _, wrong := range []uint16{0, sum + 1, sum - 1, ^sum, 0xffff} {
		binary.BigEndian.PutUint16(packet[ndChecksum:], wrong)
		if _, err := ParseND(packet, FormIPoIB); !errors.Is(err, ErrChecksum) {
			t.Errorf("0x%04x for 0x%04x: got %v, want ErrChecksum", wrong, sum, err)
		}
	}
}
