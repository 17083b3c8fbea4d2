package reset

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// samples are messages with their exact bytes.
var samples = []struct {
	name string
	m    Message
	hex  string
}{
	{"hello", Hello{
		ID: 0x0102030405060708, Name: "ib0", Holds: true, Wants: true, Told: 9,
		Last: Ended{Reset: 8, Outcome: OutcomeDone}, Roster: []Member{{ID: 5, PID: 77, Name: "ib1"}},
	}, "0031 01 01 0102030405060708 03 0000000000000009 0000000000000008 01 03 696230" +
		"01 0000000000000005 0000004d 03 696231"},
	{"bare hello", Hello{ID: 1}, "001e 01 01 0000000000000001 00 0000000000000000 0000000000000000 00 00 00"},
	{"request", Request{}, "0002 01 02"},
	{"ready", Ready{Reset: 3}, "000a 01 03 0000000000000003"},
	{"leave", Leave{}, "0002 01 04"},
	{"roster", Roster{Host: "ib0", Members: []Member{{ID: 2, PID: -1, Name: "x"}}}, "0015 01 05 03 696230 01 0000000000000002 ffffffff 01 78"},
	{"empty roster", Roster{}, "0004 01 05 00 00"},
	{"pending", Pending{Reset: 1 << 63}, "000a 01 06 8000000000000000"},
	{
		"ended",
		Ended{Reset: 4, Outcome: OutcomeHeld, Holders: []Member{{ID: 2, PID: 12, Name: "ib2"}}},
		"001c 01 07 0000000000000004 04 01 0000000000000002 0000000c 03 696232",
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCodecBytes(t *testing.T) {
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			want := unhex(t, s.hex)
			got, err := Append(nil, s.m)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%x, %v, want %x", got, err, want)
			}
			m, n, err := Decode(append(got, 0xee))
			if err != nil || n != len(want) || !reflect.DeepEqual(m, s.m) {
				t.Errorf("%+v, %d, %v", m, n, err)
			}
		})
	}
}

// A frame that is not whole yet is waited for; one whose length field is
// cut to what is there is refused, never half understood.
func TestCodecTruncation(t *testing.T) {
	for _, s := range samples {
		whole := unhex(t, s.hex)
		for n := range whole {
			if m, took, err := Decode(whole[:n]); m != nil || took != 0 || err != nil {
				t.Errorf("%s, %d of %d bytes: %v, %d, %v", s.name, n, len(whole), m, took, err)
			}
		}
		for n := headerLen; n < len(whole); n++ {
			cut := bytes.Clone(whole[:n])
			cut[0], cut[1] = 0, byte(n-2)
			if m, _, err := Decode(cut); !errors.Is(err, ErrFormat) {
				t.Errorf("%s cut to %d: %v, %v", s.name, n, m, err)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, hex string
		want      error
	}{
		{"length 0", "0000", ErrTooLong},
		{"length 1", "0001 01", ErrTooLong},
		{"length above the bound", "ffff 01", ErrTooLong},
		{"version 2", "0002 02 02", ErrVersion},
		{"version 2 of a frame to come", "0100 02 02", ErrVersion},
		{"kind 0", "0002 01 00", ErrFormat},
		{"kind 8", "0002 01 08", ErrFormat},
		{"request with a body", "0003 01 02 00", ErrFormat},
		{"unknown flag", "001e 01 01 0000000000000001 04 0000000000000000 0000000000000000 00 00 00", ErrFormat},
		{"client 0", "001e 01 01 0000000000000000 00 0000000000000000 0000000000000000 00 00 00", ErrFormat},
		{"outcome 5", "000c 01 07 0000000000000004 05 00", ErrFormat},
		{"control character", "0011 01 05 01 0000000000000002 00000001 01 0a", ErrFormat},
		{"member 0", "0011 01 05 01 0000000000000000 00000001 01 78", ErrFormat},
		{"nine holders", "000c 01 07 0000000000000004 01 09", ErrFormat},
		{"65 members", "0003 01 05 41", ErrFormat},
	} {
		if m, n, err := Decode(unhex(t, c.hex)); m != nil || n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %d, %v, want %v", c.name, m, n, err, c.want)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	for _, c := range []struct {
		name string
		m    Message
		want error
	}{
		{"long name", Hello{ID: 1, Name: long}, ErrTooLong},
		{"newline", Hello{ID: 1, Name: "a\nb"}, ErrFormat},
		{"members", Roster{Members: make([]Member, MaxMembers+1)}, ErrTooLong},
		{"holders", Ended{Holders: make([]Member, MaxHolders+1)}, ErrTooLong},
		{"member's name", Roster{Members: []Member{{ID: 1, Name: long}}}, ErrTooLong},
	} {
		if b, err := Append([]byte("kept"), c.m); string(b) != "kept" || !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v, want %v", c.name, b, err, c.want)
		}
	}
}

// The longest message there can be fits a reader's buffer.
func TestMaxFrame(t *testing.T) {
	m := Hello{ID: 1, Name: strings.Repeat("n", MaxName)}
	for i := range MaxMembers {
		m.Roster = append(m.Roster, Member{ID: ClientID(i + 1), Name: m.Name})
	}
	b, err := Append(nil, m)
	if err != nil || len(b) > MaxFrame {
		t.Fatalf("%d bytes, %v; the bound is %d", len(b), err, MaxFrame)
	}
	if got, n, err := Decode(b); err != nil || n != len(b) || !reflect.DeepEqual(got, m) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCleanName(t *testing.T) {
	for in, want := range map[string]string{
		"ib0": "ib0", "": "", "a\x1b[2Jb": "a?[2Jb", "ü": "??",
		strings.Repeat("y", MaxName+5): strings.Repeat("y", MaxName),
	} {
		if got := CleanName(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range samples {
		f.Add(unhex(f, s.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := Decode(b)
		if (m != nil) != (n > 0) || n > len(b) || n > MaxFrame || (err != nil && n != 0) {
			t.Fatalf("%v, %d of %d, %v", m, n, len(b), err)
		}
		if m == nil {
			if err == nil && len(b) >= MaxFrame {
				t.Fatalf("%d bytes and no frame", len(b))
			}
			return
		}
		again, err := Append(nil, m)
		if err != nil || !bytes.Equal(again, b[:n]) {
			t.Fatalf("%x became %x, %v", b[:n], again, err)
		}
	})
}
