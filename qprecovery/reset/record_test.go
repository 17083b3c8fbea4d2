package reset

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
)

var sample = Record{
	Phase: PhaseResetting, Outcome: OutcomeHeld, Begun: true, Number: 0x0102030405060708, PID: 0x0a0b0c0d,
	Device: Device{NodeGUID: [8]byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}, PCIAddr: "0000:03:00.1", Parent: "eth0", Name: "rxe0", Means: "link"},
	Leader: "ib0,ib1", Detail: "held",
}

func TestRecordBytes(t *testing.T) {
	b := sample.Encode()
	want := "IPRL\x01\x02\x04\x01" + "\x01\x02\x03\x04\x05\x06\x07\x08" + "\x0a\x0b\x0c\x0d" + "\x02\x00\x00\xff\xfe\x00\x00\x01" + "0000:03:00.1\x00"
	if got := string(b[:len(want)]); got != want || len(b) != RecordSize {
		t.Errorf("encoded %d bytes: %q, want %q", len(b), got, want)
	}
	got, err := Decode(b)
	if err != nil || got != sample {
		t.Errorf("%+v, %v", got, err)
	}
	if r, err := Decode(nil); err != nil || r != (Record{}) {
		t.Errorf("decode an empty file: %+v, %v", r, err)
	}
}

// A truncated record, or one with a wrong bit, is refused.
func TestR16DamagedRecordIsRefused(t *testing.T) {
	b := sample.Encode()
	for n := 1; n < len(b); n++ {
		if _, err := Decode(b[:n]); err == nil {
			t.Fatalf("a record truncated to %d bytes was accepted", n)
		}
	}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := Decode(b); err == nil {
			t.Fatalf("a record with bit %d changed was accepted", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, err := Decode(append(b, 0)); err == nil {
		t.Error("a record with an additional byte was accepted")
	}
}

func TestRecordTextsAreCutAndCleaned(t *testing.T) {
	r := sample
	r.Leader, r.Detail = "a\nb\x1b[31m\u00e9", strings.Repeat("x", 2*textSize)
	got, err := Decode(r.Encode())
	if err != nil || got.Leader != "a?b?[31m?" || got.Detail != r.Detail[:textSize] {
		t.Errorf("%+v, %v", got, err)
	}
}

// The key consists of properties that stay the same when a device is added again (R16), and
// that differ between devices: a bridge and its port have the same GUID.
func TestR16Key(t *testing.T) {
	guid := [8]byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}
	for _, c := range []struct {
		d    Device
		want string
	}{
		{Device{NodeGUID: guid, PCIAddr: "0000:03:00.1", Name: "mlx5_0"}, "020000fffe000001-0000:03:00.1"},
		{Device{NodeGUID: guid, Parent: "eth0", Name: "rxe0"}, "020000fffe000001-eth0"},
		{Device{NodeGUID: guid, Parent: "br0", Name: "rxe0"}, "020000fffe000001-br0"},
		{Device{NodeGUID: guid, Name: "soft"}, "020000fffe000001-soft"},
		{Device{NodeGUID: guid, Parent: "../../etc/x y"}, "020000fffe000001-.._.._etc_x_y"},
	} {
		if got := c.d.Key(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.d, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(sample.Encode())
	f.Add(Record{}.Encode())
	f.Add(sample.Encode()[:RecordSize-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		summed := make([]byte, RecordSize) // an attacker who writes the file can compute the checksum
		copy(summed, b)
		binary.BigEndian.PutUint32(summed[atCRC:], crc32.ChecksumIEEE(summed[:atCRC]))
		for _, b := range [][]byte{b, summed} {
			r, err := Decode(b)
			if err == nil && len(b) > 0 && !bytes.Equal(r.Encode(), b) {
				t.Errorf("%+v does not encode to %x", r, b)
			}
		}
	})
}
