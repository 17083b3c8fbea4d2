package roce_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// unhex decodes bytes written with spaces between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var bthTests = []struct {
	name  string
	bth   roce.BTH
	bytes string
}{
	{"zero", roce.BTH{}, "00 00 0000 00 000000 00 000000"},
	{"opcode", roce.BTH{Opcode: 0x64}, "64 00 0000 00 000000 00 000000"},
	{"solicited", roce.BTH{Solicited: true}, "00 80 0000 00 000000 00 000000"},
	{"migrated", roce.BTH{Migrated: true}, "00 40 0000 00 000000 00 000000"},
	{"pad", roce.BTH{Pad: 3}, "00 30 0000 00 000000 00 000000"},
	{"version", roce.BTH{Version: 15}, "00 0f 0000 00 000000 00 000000"},
	{"pkey", roce.BTH{PKey: 0x8123}, "00 00 8123 00 000000 00 000000"},
	{"fecn", roce.BTH{FECN: true}, "00 00 0000 80 000000 00 000000"},
	{"becn", roce.BTH{BECN: true}, "00 00 0000 40 000000 00 000000"},
	{"qpn", roce.BTH{DestQPN: 0x123456}, "00 00 0000 00 123456 00 000000"},
	{"ackreq", roce.BTH{AckReq: true}, "00 00 0000 00 000000 80 000000"},
	{"psn", roce.BTH{PSN: 0xabcdef}, "00 00 0000 00 000000 00 abcdef"},
	{
		"all", roce.BTH{
			Opcode: 0xff, Solicited: true, Migrated: true, Pad: 3, Version: 15, PKey: 0xffff,
			FECN: true, BECN: true, DestQPN: hca.QPNMask, AckReq: true, PSN: 0xffffff,
		}, "ff ff ffff c0 ffffff 80 ffffff",
	},
}

func TestBTHBytes(t *testing.T) {
	for _, tt := range bthTests {
		t.Run(tt.name, func(t *testing.T) {
			want := unhex(t, tt.bytes)
			got := bytes.Repeat([]byte{0xa5}, roce.BTHLen)
			tt.bth.Put(got)
			if !bytes.Equal(got, want) {
				t.Errorf("put % x, want % x", got, want)
			}
			if bth := roce.ReadBTH(want); bth != tt.bth {
				t.Errorf("read %+v, want %+v", bth, tt.bth)
			}
		})
	}
}

func TestBTHCutsWideValues(t *testing.T) {
	got := make([]byte, roce.BTHLen)
	(&roce.BTH{Pad: 4, Version: 16, DestQPN: 1 << 24, PSN: 1 << 24}).Put(got)
	if !bytes.Equal(got, make([]byte, roce.BTHLen)) {
		t.Errorf("values wider than their fields were put as % x, want zeros", got)
	}
}

func TestBTHIgnoresReserved(t *testing.T) {
	src := unhex(t, "00 00 0000 3f 000000 7f 000000")
	if bth := roce.ReadBTH(src); bth != (roce.BTH{}) {
		t.Errorf("read %+v, want a zero BTH", bth)
	}
}

func TestDETHBytes(t *testing.T) {
	want := unhex(t, "80010b1b 00 abcdef")
	got := bytes.Repeat([]byte{0xa5}, roce.DETHLen)
	deth := roce.DETH{QKey: 0x80010b1b, SrcQPN: 0xabcdef}
	deth.Put(got)
	if !bytes.Equal(got, want) {
		t.Errorf("put % x, want % x", got, want)
	}
	want[4] = 0xff // reserved
	if got := roce.ReadDETH(want); got != deth {
		t.Errorf("read %+v, want %+v", got, deth)
	}
	(&roce.DETH{SrcQPN: 0xff000001}).Put(got)
	if !bytes.Equal(got, unhex(t, "00000000 00 000001")) {
		t.Errorf("wide QPN put as % x", got)
	}
}

func TestPutPanicsOnShort(t *testing.T) {
	for name, put := range map[string]func(){
		"BTH":  func() { (&roce.BTH{}).Put(make([]byte, roce.BTHLen-1)) },
		"DETH": func() { (&roce.DETH{}).Put(make([]byte, roce.DETHLen-1)) },
		"ICRC": func() { roce.PutICRC(make([]byte, roce.ICRCLen-1), 0) },
		"GRH":  func() { roce.PutGRH(make([]byte, hca.GRHLen-1), &path4, 0, 0, 0) },
		"sum":  func() { roce.ICRC(&path4, make([]byte, roce.BTHLen-1)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			put()
		})
	}
}

// sendHeader is the header of a UD SEND with this pad count.
func sendHeader(pad byte) []byte {
	return []byte{
		0x64, pad << 4, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1,
		0, 0, 0x0b, 0x1b, 0, 0, 0, 0x12,
	}
}

func TestUDSendParsePayload(t *testing.T) {
	for _, tt := range []struct {
		pad        byte
		body, want string
	}{
		{0, "", ""},
		{0, "abcd", "abcd"},
		{1, "abc\x00", "abc"},
		{2, "ab\x00\x00", "ab"},
		{3, "a\x00\x00\x00", "a"},
		{3, "abcde\x01\x02\x03", "abcde"},
	} {
		d := append(append(sendHeader(tt.pad), tt.body...), 1, 2, 3, 4)
		var p roce.UDSend
		err := p.Parse(d)
		if err != nil || string(p.Payload) != tt.want {
			t.Errorf("pad %d of %q: %q, %v, want %q", tt.pad, tt.body, p.Payload, err, tt.want)
		}
		if p.DestQPN != 0x11 || p.SrcQPN != 0x12 || p.QKey != 0x0b1b || p.PKey != hca.PKeyDefault || p.PSN != 1 {
			t.Errorf("wrong fields: %+v", p)
		}
		if cap(p.Payload) != len(p.Payload) {
			t.Errorf("capacity %d over %d bytes", cap(p.Payload), len(p.Payload))
		}
		if len(tt.want) > 0 && &p.Payload[0] != &d[roce.HeaderLen] {
			t.Error("payload is a copy")
		}
	}
}

func TestUDSendParseErrors(t *testing.T) {
	change := func(at int, to byte) []byte {
		d := append(sendHeader(0), "abcd\x01\x02\x03\x04"...)
		d[at] = to
		return d
	}
	for _, tt := range []struct {
		name     string
		datagram []byte
		want     error
	}{
		{"no BTH", nil, roce.ErrShort},
		{"no ICRC", append(sendHeader(0), 1, 2, 3), roce.ErrShort},
		{"version 1", change(1, 1), roce.ErrVersion},
		{"immediate", change(0, 0x65), roce.ErrImmediate},
		{"RC send", change(0, 0x04), roce.ErrOpcode},
		{"CNP", change(0, 0x81), roce.ErrOpcode},
		{"pad without payload", append(sendHeader(1), 1, 2, 3, 4), roce.ErrPad},
		{"half a word", append(sendHeader(0), "ab\x01\x02\x03\x04"...), roce.ErrPad},
	} {
		if err := new(roce.UDSend).Parse(tt.datagram); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestUDSendParseOpcodes(t *testing.T) {
	d := append(sendHeader(0), 1, 2, 3, 4)
	for op := range 256 {
		d[0] = byte(op)
		err := new(roce.UDSend).Parse(d)
		if (err == nil) != (op == roce.OpcodeUDSendOnly) {
			t.Errorf("opcode %#x: %v, want an error unless it is UD SEND only", op, err)
		}
	}
}

// A truncated frame is always refused: it is too short, or its length is not a
// multiple of a word, or its ICRC is wrong.
func TestTruncatedRealFrames(t *testing.T) {
	for i, f := range rxeFrames(t) {
		for n := range f.datagram {
			d := f.datagram[:n:n]
			err := new(roce.UDSend).Parse(d)
			switch {
			case n < roce.HeaderLen+roce.ICRCLen && !errors.Is(err, roce.ErrShort),
				n >= roce.HeaderLen+roce.ICRCLen && n%4 != 0 && !errors.Is(err, roce.ErrPad):
				t.Errorf("frame %d cut to %d: %v", i, n, err)
			}
			if m := new(roce.Verifier).Verify(&f.path, true, d); m != roce.NoMatch {
				t.Errorf("frame %d cut to %d: %v", i, n, m)
			}
		}
	}
}

func TestParseRealFrames(t *testing.T) {
	for i, f := range rxeFrames(t) {
		var p roce.UDSend
		err := p.Parse(f.datagram)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		header := make([]byte, roce.HeaderLen)
		p.BTH.Put(header)
		p.DETH.Put(header[roce.BTHLen:])
		if !bytes.Equal(header, f.datagram[:roce.HeaderLen]) {
			t.Errorf("frame %d: header % x, put back % x", i, f.datagram[:roce.HeaderLen], header)
		}
		if p.QKey != 0x11111111 || p.PKey != hca.PKeyDefault || len(p.Payload)%64 != 0 {
			t.Errorf("wrong fields of frame %d: %+v", i, p)
		}
	}
}

func TestPadFor(t *testing.T) {
	for n, want := range []int{0, 3, 2, 1, 0, 3, 2, 1, 0} {
		if got := roce.PadFor(n); got != want {
			t.Errorf("%d bytes: %d, want %d", n, got, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 0, 4096).Draw(t, "payload")
		path := rapid.SampledFrom([]roce.Path{path4, path6}).Draw(t, "path")
		bth := roce.BTH{
			Opcode:    roce.OpcodeUDSendOnly,
			Solicited: rapid.Bool().Draw(t, "solicited"),
			Pad:       uint8(roce.PadFor(len(payload))),
			PKey:      hca.PKey(rapid.Uint16().Draw(t, "pkey")),
			DestQPN:   hca.QPN(rapid.Uint32Max(0xffffff).Draw(t, "dest")),
			PSN:       rapid.Uint32Max(0xffffff).Draw(t, "psn"),
		}
		deth := roce.DETH{
			QKey:   hca.QKey(rapid.Uint32().Draw(t, "qkey")),
			SrcQPN: hca.QPN(rapid.Uint32Max(0xffffff).Draw(t, "src")),
		}
		d := make([]byte, roce.HeaderLen, 5000)
		bth.Put(d)
		deth.Put(d[roce.BTHLen:])
		d = append(append(d, payload...), make([]byte, bth.Pad)...)
		d = append(d, 0, 0, 0, 0)
		end := len(d) - roce.ICRCLen
		roce.PutICRC(d[end:], roce.ICRC(&path, d[:end]))

		var p roce.UDSend

		err := p.Parse(d)
		if err != nil || p.BTH != bth || p.DETH != deth || !bytes.Equal(p.Payload, payload) {
			t.Fatalf("parsed %+v, %v, want what was put", p, err)
		}
		if m := new(roce.Verifier).Verify(&path, true, d); m != roce.MatchKnownID {
			t.Fatal(m)
		}
	})
}
