package ibwire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// unhex decodes hexadecimal digits; spaces and the names of fields between them, in brackets, are for the reader.
func unhex(t testing.TB, text string) []byte {
	t.Helper()
	var digits strings.Builder
	for field := range strings.FieldsSeq(text) {
		if !strings.HasPrefix(field, "[") {
			digits.WriteString(field)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The packets of the tests, with their bytes.
const (
	localBytes = `
		[VL,version] 00 [SL,LNH] 32 [DLID] 0007 [words] 0009 [SLID] 0005
		[opcode] 64 [pad] 10 [P_Key] 8001 [QPN] 00000048 [PSN] 00fffffe
		[Q_Key] 00000b1b [source] 00000123
		[payload] 61 62 63 [pad] 00 [ICRC] 00000000`
	globalBytes = `
		[VL,version] 00 [SL,LNH] 03 [DLID] c001 [words] 0013 [SLID] 0005
		[version] 60000000 [length] 001c [next] 1b [hops] 00
		[SGID] fe80000000000000 0002c90300003001 [DGID] ff12401bffff0000 0000000000000001
		[opcode] 64 [pad] 00 [P_Key] ffff [QPN] 00ffffff [PSN] 00000001
		[Q_Key] 80010000 [source] 00000001
		[payload] 61626364 [ICRC] 00000000`
)

func localPacket() Packet {
	return Packet{
		SLID: 5, DLID: 7, SL: 3, PKey: 0x8001, DestQPN: 0x48, PSN: 0xfffffe, QKey: 0xb1b, SrcQPN: 0x123, Payload: []byte("abc"),
	}
}

func globalPacket() Packet {
	return Packet{
		SLID: 5, DLID: 0xc001, Global: true,
		SGID: hca.GID{0: 0xfe, 1: 0x80, 9: 2, 10: 0xc9, 11: 3, 14: 0x30, 15: 1},
		DGID: hca.GID{0: 0xff, 1: 0x12, 2: 0x40, 3: 0x1b, 4: 0xff, 5: 0xff, 15: 1},
		PKey: 0xffff, DestQPN: hca.QPNMulticast, PSN: 1, QKey: 0x80010000, SrcQPN: 1, Payload: []byte("abcd"),
	}
}

func TestPacketBytes(t *testing.T) {
	for text, p := range map[string]Packet{localBytes: localPacket(), globalBytes: globalPacket()} {
		want := unhex(t, text)
		if got := p.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%+v:\n% x, want\n% x", p, got, want)
		}
		var got Packet
		if err := got.Parse(want); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("parsed %+v, %v, want %+v", got, err, p)
		}
	}
}

func TestSetSLID(t *testing.T) {
	for text, want := range map[string]Packet{localBytes: localPacket(), globalBytes: globalPacket()} {
		b := unhex(t, text)
		SetSLID(b, 0x1235)
		want.SLID = 0x1235
		var got Packet
		if err := got.Parse(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parsed %+v, %v, want %+v", got, err, want)
		}
	}
}

// Every truncation is refused, and Ethernet's padding is ignored.
func TestPacketLengths(t *testing.T) {
	for _, p := range []Packet{localPacket(), globalPacket()} {
		whole := p.Append(nil)
		var got Packet
		for n := range whole {
			if err := got.Parse(whole[:n]); !errors.Is(err, ErrShort) && !errors.Is(err, ErrLength) {
				t.Errorf("%d of %d bytes: %v, want an error of the length", n, len(whole), err)
			}
		}
		if err := got.Parse(append(whole, 0, 0, 0, 0, 0, 0)); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("padded by Ethernet: %+v, %v, want %+v", got, err, p)
		}
	}
}

func TestPacketRefused(t *testing.T) {
	long := Packet{Payload: make([]byte, MaxPayload)}
	for name, c := range map[string]struct {
		p     Packet
		spoil func(b []byte) []byte
		want  error
	}{
		"raw packet":         {localPacket(), func(b []byte) []byte { b[1] &^= lnhMask; return b }, ErrHeader},
		"IPv6 packet":        {localPacket(), func(b []byte) []byte { b[1] = b[1]&^lnhMask | 1; return b }, ErrHeader},
		"length too long":    {localPacket(), func(b []byte) []byte { b[5]++; return b }, ErrLength},
		"length too short":   {localPacket(), func(b []byte) []byte { b[5] = 7; return b }, ErrLength},
		"padding too long":   {Packet{}, func(b []byte) []byte { b[9] |= 1 << 4; return b }, ErrLength},
		"RC":                 {localPacket(), func(b []byte) []byte { b[8] = 0x04; return b }, ErrOpcode},
		"UD with immediate":  {globalPacket(), func(b []byte) []byte { b[48] = 0x65; return b }, ErrOpcode},
		"payload above 4096": {long, func(b []byte) []byte { b[5]++; return append(b, 0, 0, 0, 0) }, ErrLength},
	} {
		var p Packet
		if err := p.Parse(c.spoil(c.p.Append(nil))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A packet is read as it was written.
func TestPacketRoundTrip(t *testing.T) {
	gid := rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) hca.GID { return hca.GID(b) })
	rapid.Check(t, func(t *rapid.T) {
		p := Packet{
			SLID: rapid.Uint16().Draw(t, "SLID"), DLID: rapid.Uint16().Draw(t, "DLID"), SL: rapid.Uint8Max(15).Draw(t, "SL"),
			Global: rapid.Bool().Draw(t, "global"), PKey: hca.PKey(rapid.Uint16().Draw(t, "P_Key")),
			DestQPN: hca.QPN(rapid.Uint32Max(uint32(hca.QPNMask)).Draw(t, "QPN")), PSN: rapid.Uint32Max(1<<24-1).Draw(t, "PSN"),
			QKey: hca.QKey(rapid.Uint32().Draw(t, "Q_Key")), SrcQPN: hca.QPN(rapid.Uint32Max(uint32(hca.QPNMask)).Draw(t, "source")),
			Payload: rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "payload"),
		}
		if p.Global {
			p.SGID, p.DGID = gid.Draw(t, "SGID"), gid.Draw(t, "DGID")
		}
		var got Packet
		if err := got.Parse(p.Append(nil)); err != nil || !bytes.Equal(got.Payload, p.Payload) {
			t.Fatalf("%+v, %v, want %+v", got, err, p)
		}
		got.Payload, p.Payload = nil, nil
		if !reflect.DeepEqual(got, p) {
			t.Fatalf("%+v, want %+v", got, p)
		}
	})
}

func TestIsMulticast(t *testing.T) {
	for lid, want := range map[uint16]bool{0: false, 1: false, 0xbfff: false, 0xc000: true, 0xfffe: true, Permissive: false} {
		if IsMulticast(lid) != want {
			t.Errorf("LID %#x: %v, want %v", lid, !want, want)
		}
	}
}

// FuzzPacket checks that what is accepted is written to the same bytes, except for those that are ignored.
func FuzzPacket(f *testing.F) {
	for _, p := range []Packet{localPacket(), globalPacket(), {}} {
		f.Add(p.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Packet
		if p.Parse(b) != nil {
			return
		}
		out := p.Append(nil)
		if len(out) > len(b) || again.Parse(out) != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("% x is %+v, and written % x is %+v", b, p, out, again)
		}
	})
}
