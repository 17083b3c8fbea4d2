package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"eth0, Größe 日本":            "eth0, Größe 日本",
		"\x1b[2J\x07":               `\u001b[2J\u0007`,
		"a\nb\tc\rd\x00":            `a\u000ab\u0009c\u000dd\u0000`,
		"\u009b31m\x7f":             `\u009b31m\u007f`,
		"\x9b31m":                   `\u009b31m`, // the byte that an 8-bit terminal takes for CSI
		"\xef\xbf":                  `\u00ef\u00bf`,
		"\ufffd":                    "\ufffd",
		"user\u202etxt\u2066\u200b": `user\u202etxt\u2066\u200b`,
		"a\u2028b\u00a0":            `a\u2028b\u00a0`,
		"\U000e0041":                `\udb40\udc41`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

// Newlines and tabs in arguments are escaped, those in the format are not. Widths and
// precisions still apply.
func TestFprintfEscapesArguments(t *testing.T) {
	var out bytes.Buffer
	if _, err := Fprintf(&out, "%s\t%-6s|%5.1f|%v|%q\n", errors.New("a\nb"), "x\x1b", 1.25, []string{"\t"}, "\x1b"); err != nil {
		t.Fatal(err)
	}
	want := "a\\u000ab\tx\\u001b    |  1.2|[\\u0009]|\"\\x1b\"\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestLinesIndentsWhatFollows(t *testing.T) {
	if got, want := Lines("a\nipoibd: forged\x1b\tb\n\tc"), "a\n  ipoibd: forged\\u001b\\u0009b\n  c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A program that reads the JSON gets the original text.
func TestWriterKeepsJSON(t *testing.T) {
	const name = "e\x1b\u009b\x7f\u202e\U000e0041\"\\日"
	var out bytes.Buffer
	if err := json.NewEncoder(Writer{&out}).Encode(map[string]string{"name": name}); err != nil {
		t.Fatal(err)
	}
	check(t, out.String())
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["name"] != name {
		t.Errorf("%v: %q came back as %q, by way of %s", err, name, back["name"], &out)
	}
}

// failing is an output that has been closed.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriterReportsErrors(t *testing.T) {
	if n, err := (Writer{failing{}}).Write([]byte("a")); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%d, %v", n, err)
	}
}

// check fails the test for anything that a terminal might act on.
func check(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("not UTF-8: %q", s)
	}
	for _, r := range s {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Errorf("%U in %q", r, s)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"\x1b[31mred", "a\nb", "\x9b", "\xc2", "\u202e", "\U000e0041", "\ufffd"} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, s string, cut int) {
		if got := Escape(s); strings.ContainsAny(got, "\n\t") {
			t.Errorf("%q", got)
		}
		check(t, Escape(s))
		var out bytes.Buffer
		if _, err := Fprintf(&out, "%s %v %q %-3s\n", s, fmt.Errorf("e: %s", s), s, []string{s}); err != nil {
			t.Fatal(err)
		}
		if check(t, out.String()); strings.Count(out.String(), "\n") != 1 {
			t.Errorf("more than one line: %q", &out)
		}
		out.Reset()
		cut = max(0, min(cut, len(s)))
		for _, part := range []string{s[:cut], s[cut:]} {
			if n, err := (Writer{&out}).Write([]byte(part)); n != len(part) || err != nil {
				t.Errorf("wrote %d of %d: %v", n, len(part), err)
			}
		}
		check(t, out.String())
	})
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234567: "1.23ms", 999999999: "1s", 12345678912: "12.35s", time.Hour + time.Millisecond: "1h0m0s",
	} {
		if got := Short(d).String(); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}
