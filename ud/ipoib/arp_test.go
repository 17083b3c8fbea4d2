package ipoib

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

var (
	arpBytes = unhex(`0020 0800 14 04 0002
		00000048 fe80000000000000 020000fffe00000a c0000201
		0012ab49 fe80000000000000 020000fffe00000b c0000202`)
	arpReply = ARP{ARPReply, addrA, ip("192.0.2.1"), addrB, ip("192.0.2.2")}

	etherARPBytes = unhex("0001 0800 06 04 0001 02000000000a c0000201 000000000000 c0000202")
	etherARPQuery = EtherARP{ARPRequest, macA, ip("192.0.2.1"), MAC{}, ip("192.0.2.2")}
)

func TestARPExactBytes(t *testing.T) {
	if got := arpReply.Append([]byte("x")); !bytes.Equal(got, append([]byte("x"), arpBytes...)) {
		t.Errorf("got % x, want x and % x", got, arpBytes)
	}
	if got, err := ParseARP(arpBytes); err != nil || got != arpReply {
		t.Errorf("got %+v, %v; want %+v", got, err, arpReply)
	}
}

func TestEtherARPExactBytes(t *testing.T) {
	if got := etherARPQuery.Append([]byte("x")); !bytes.Equal(got, append([]byte("x"), etherARPBytes...)) {
		t.Errorf("got % x, want x and % x", got, etherARPBytes)
	}
	if got, err := ParseEtherARP(etherARPBytes); err != nil || got != etherARPQuery {
		t.Errorf("got %+v, %v; want %+v", got, err, etherARPQuery)
	}
}

func TestARPIgnoresPadding(t *testing.T) {
	padded := append(bytes.Clone(etherARPBytes), make([]byte, 18)...) // to 46 bytes, the minimum of Ethernet
	if got, err := ParseEtherARP(padded); err != nil || got != etherARPQuery {
		t.Errorf("Ethernet: got %+v, %v, want the padding ignored", got, err)
	}
	if got, err := ParseARP(append(bytes.Clone(arpBytes), 1, 2, 3)); err != nil || got != arpReply {
		t.Errorf("IPoIB: got %+v, %v, want the padding ignored", got, err)
	}
}

func TestARPTruncated(t *testing.T) {
	for n := range arpBytes {
		if got, err := ParseARP(arpBytes[:n]); !errors.Is(err, ErrTruncated) || got != (ARP{}) {
			t.Errorf("IPoIB, %d bytes: got %+v, %v", n, got, err)
		}
	}
	for n := range etherARPBytes {
		if got, err := ParseEtherARP(etherARPBytes[:n]); !errors.Is(err, ErrTruncated) || got != (EtherARP{}) {
			t.Errorf("Ethernet, %d bytes: got %+v, %v", n, got, err)
		}
	}
}

// TestARPFixedPart changes each byte of the fixed part: every change is
// refused, except in the operation.
func TestARPFixedPart(t *testing.T) {
	for off := range arpFixedLen {
		want := error(nil)
		if off < 6 {
			want = ErrFormat
		}
		if _, err := ParseARP(flip(arpBytes, off)); !errors.Is(err, want) {
			t.Errorf("IPoIB, byte %d: got %v, want %v", off, err, want)
		}
		if _, err := ParseEtherARP(flip(etherARPBytes, off)); !errors.Is(err, want) {
			t.Errorf("Ethernet, byte %d: got %v, want %v", off, err, want)
		}
	}
}

// flip returns a copy of b with a bit of one byte flipped.
func flip(b []byte, off int) []byte {
	b = bytes.Clone(b)
	b[off] ^= 0x10
	return b
}

// TestARPFormsDoNotMix checks that a body of one form is not accepted as the
// other.
func TestARPFormsDoNotMix(t *testing.T) {
	if _, err := ParseARP(append(bytes.Clone(etherARPBytes), make([]byte, 56)...)); !errors.Is(err, ErrFormat) {
		t.Errorf("Ethernet body as IPoIB: %v", err)
	}
	if _, err := ParseEtherARP(arpBytes); !errors.Is(err, ErrFormat) {
		t.Errorf("IPoIB body as Ethernet: %v", err)
	}
}

func TestARPRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := ARP{Op: rapid.Uint16().Draw(t, "op"), SPA: drawIPv4(t), TPA: drawIPv4(t)}
		copy(a.SHA[:], rapid.SliceOfN(rapid.Byte(), AddrLen, AddrLen).Draw(t, "sha"))
		copy(a.THA[:], rapid.SliceOfN(rapid.Byte(), AddrLen, AddrLen).Draw(t, "tha"))
		if got, err := ParseARP(a.Append(nil)); err != nil || got != a {
			t.Fatalf("got %+v, %v; want %+v", got, err, a)
		}
		e := EtherARP{a.Op, MAC(a.SHA[:]), a.SPA, MAC(a.THA[:]), a.TPA}
		if got, err := ParseEtherARP(e.Append(nil)); err != nil || got != e {
			t.Fatalf("got %+v, %v; want %+v", got, err, e)
		}
	})
}

func drawIPv4(t *rapid.T) netip.Addr {
	return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")))
}
