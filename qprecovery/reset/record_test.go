package reset

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

var sample = Record{
	Phase: PhaseResetting, Outcome: OutcomeHeld, Begun: true, Number: 0x0102030405060708,
	Device: Device{NodeGUID: [8]byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}, PCIAddr: "0000:03:00.1", Parent: "eth0", Name: "rxe0", Means: "link"},
	Leader: "ib0,ib1", Detail: "held",
}

func TestRecordBytes(t *testing.T) {
	b := sample.Encode()
	want := `{"Phase":"resetting","Outcome":"held_by_process","Begun":true,"Number":72623859790382856,` +
		`"Device":{"NodeGUID":[2,0,0,255,254,0,0,1],"PCIAddr":"0000:03:00.1","Parent":"eth0","Name":"rxe0","Means":"link"},` +
		`"Leader":"ib0,ib1","Detail":"held"}`
	if got := strings.TrimRight(string(b), " \n"); got != want || len(b) != RecordSize || b[len(b)-1] != '\n' {
		t.Errorf("encoded %d bytes: %q, want %q", len(b), got, want)
	}
	got, err := Decode(b)
	if err != nil || got != sample {
		t.Errorf("decoded %+v, %v, want %+v", got, err, sample)
	}
	if r, err := Decode(nil); err != nil || r != (Record{}) {
		t.Errorf("decode an empty file: %+v, %v", r, err)
	}
}

// The largest record fits, whatever its texts contain.
func TestRecordFits(t *testing.T) {
	r := Record{Phase: PhaseResetting, Outcome: OutcomeHeld, Begun: true, Number: math.MaxUint64}
	r.Device.NodeGUID = [8]byte{255, 255, 255, 255, 255, 255, 255, 255}
	for _, text := range r.texts() {
		*text = strings.Repeat("\u2028\"<&\x00", textSize)
	}
	if _, err := Decode(r.Encode()); err != nil {
		t.Error(err)
	}
}

// A record is untrusted (R16): text that is not a record is refused, as are invalid values.
func TestR16DamagedRecordIsRefused(t *testing.T) {
	b := sample.Encode()
	for n := 1; n < len(b); n++ {
		if _, err := Decode(b[:n]); err == nil {
			t.Fatalf("a record truncated to %d bytes was accepted", n)
		}
	}
	if _, err := Decode(append(b, 0)); err == nil {
		t.Error("a record with an additional byte was accepted")
	}
	for _, change := range [][2]string{
		{`"resetting"`, `"unheard"`},
		{`"held_by_process"`, `"unheard"`},
		{`true`, `2`},
		{`"eth0"`, `"eth\n"`},
		{`"eth0"`, `"` + strings.Repeat("x", textSize+1) + `"`},
		{`72623859790382856`, `-1`},
		{`[2,`, `[256,`},
		{`{"Phase"`, `["Phase"`},
	} {
		text := strings.Replace(strings.TrimRight(string(sample.Encode()), " \n"), change[0], change[1], 1)
		text += strings.Repeat(" ", RecordSize-len(text))
		if r, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s instead of %s was accepted as %+v", change[1], change[0], r)
		}
	}
}

func TestRecordTextsAreCutAndCleaned(t *testing.T) {
	r := sample
	r.Leader, r.Detail = "a\nb\x1b[31m\u00e9", strings.Repeat("x", 2*textSize)
	got, err := Decode(r.Encode())
	if err != nil || got.Leader != "a?b?[31m?" || got.Detail != r.Detail[:textSize] {
		t.Errorf("decoded %+v, %v, want a clean leader and a shortened detail", got, err)
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

// FuzzDecode checks that a decoded record can be encoded, and decodes to itself again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(sample.Encode())
	f.Add(Record{}.Encode())
	f.Add(sample.Encode()[:RecordSize-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		filled := slices.Concat(b, bytes.Repeat([]byte{' '}, max(0, RecordSize-len(b))))
		for _, b := range [][]byte{b, filled} {
			r, err := Decode(b)
			if err != nil {
				continue
			}
			if again, err := Decode(r.Encode()); err != nil || again != r {
				t.Errorf("%q decodes to %+v, and after encoding to %+v, %v", b, r, again, err)
			}
		}
	})
}
