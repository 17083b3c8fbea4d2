package vnet

import (
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// tcpHeader describes a large TCP frame as Linux passes it to a TAP: IPv4, with
// a partial checksum.
var tcpHeader = Header{
	Flags: NeedsCsum, GSOType: GSOTCPv4 | GSOECN,
	HdrLen: 66, GSOSize: 1448, CsumStart: 34, CsumOffset: 16,
}

// tcpBytes returns the exact bytes of tcpHeader in the host's byte order.
func tcpBytes() []byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return []byte{0x01, 0x81, 0x42, 0x00, 0xa8, 0x05, 0x22, 0x00, 0x10, 0x00}
	}
	return []byte{0x01, 0x81, 0x00, 0x42, 0x05, 0xa8, 0x00, 0x22, 0x00, 0x10}
}

func TestPutExactBytes(t *testing.T) {
	got := [HeaderLen + 2]byte{10: 0xee, 11: 0xee}
	tcpHeader.Put(got[:])
	if string(got[:HeaderLen]) != string(tcpBytes()) {
		t.Errorf("got % x, want % x", got[:HeaderLen], tcpBytes())
	}
	if got[10] != 0xee || got[11] != 0xee {
		t.Error("Put wrote past the header")
	}
}

func TestPutZeroClearsOldBytes(t *testing.T) {
	dst := [HeaderLen]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	Header{}.Put(dst[:])
	if dst != [HeaderLen]byte{} {
		t.Errorf("got % x, want zeros", dst)
	}
}

func TestParseExactBytes(t *testing.T) {
	frame := append(tcpBytes(), 0xff, 0xff)
	got, err := Parse(frame)
	if err != nil || got != tcpHeader {
		t.Errorf("got %+v, %v; want %+v", got, err, tcpHeader)
	}
}

func TestParseTruncated(t *testing.T) {
	for n := range HeaderLen {
		if _, err := Parse(tcpBytes()[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("%d bytes: got %v, want ErrTruncated", n, err)
		}
	}
}

func TestPutShortPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Put into 9 bytes did not panic")
		}
	}()
	Header{}.Put(make([]byte, HeaderLen-1))
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := rapid.SliceOfN(rapid.Byte(), HeaderLen, HeaderLen).Draw(t, "header")
		h, err := Parse(src)
		if err != nil {
			t.Fatal(err)
		}
		var dst [HeaderLen]byte
		if h.Put(dst[:]); string(dst[:]) != string(src) {
			t.Fatalf("got % x, want % x", dst, src)
		}
	})
}

func TestNoAllocation(t *testing.T) {
	buf := tcpBytes()
	if n := testing.AllocsPerRun(100, func() {
		h, err := Parse(buf)
		if err != nil {
			t.Fatal(err)
		}
		h.Put(buf)
		if _, err := Parse(buf[:3]); err == nil {
			t.Fatal("3 bytes parsed")
		}
	}); n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(tcpBytes())
	f.Add([]byte{})
	f.Add(make([]byte, HeaderLen-1))
	f.Fuzz(func(t *testing.T, src []byte) {
		h, err := Parse(src)
		if (err != nil) != (len(src) < HeaderLen) {
			t.Fatalf("%d bytes: %v, want an error only if shorter than %d", len(src), err, HeaderLen)
		}
		var dst [HeaderLen]byte
		if h.Put(dst[:]); err == nil && string(dst[:]) != string(src[:HeaderLen]) {
			t.Fatalf("got % x, want % x", dst, src)
		}
	})
}
