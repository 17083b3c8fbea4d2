// Package terminal formats what the program prints for people. Above all it keeps control
// characters out of the output. Others choose the names of processes, interfaces, devices and
// hosts; with control characters they could recolour a terminal, set its title, hide text or
// forge lines.
//
// There are two lines of defence. Fprintf escapes its arguments, newlines included, so
// that a name cannot end its line or its column. Writer wraps the program's outputs: it
// escapes what reaches it by any other way of printing, but keeps newlines and tabs, which
// it cannot distinguish from the program's own.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape replaces what is not printable (controls of C0 and C1, DEL, line
// separators, marks of text direction, bytes that are not UTF-8) by \uXXXX, which
// in JSON stands for the same character.
func Escape(s string) string { return escape(s, "") }

// Lines escapes s but keeps newlines, and indents the lines after them, so that a
// newline in s cannot forge a line of the program. The indentation replaces a tab, by
// which cobra indents suggestions.
func Lines(s string) string {
	s = strings.ReplaceAll(s, "\n\t", "\n")
	return strings.ReplaceAll(escape(s, "\n"), "\n", "\n  ")
}

// Fprintf is fmt.Fprintf, but escapes each argument after formatting it. It does not escape
// the format itself.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	escaped := make([]any, len(args))
	for i, a := range args {
		escaped[i] = argument{a}
	}
	return fmt.Fprintf(w, format, escaped...)
}

// argument escapes its value after formatting it.
type argument struct{ value any }

func (a argument) Format(f fmt.State, verb rune) {
	_, _ = io.WriteString(f, Escape(fmt.Sprintf(fmt.FormatString(f, verb), a.value)))
}

// Writer escapes what is written to W, except newlines and tabs. A character that
// is cut by the end of a Write is escaped byte by byte.
type Writer struct{ W io.Writer }

// Write returns len(p) unless W fails.
func (w Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.W, escape(string(p), "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escape escapes every character that is neither printable nor in keep.
func escape(s, keep string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch high, low := utf16.EncodeRune(r); {
		case r == utf8.RuneError && n == 1: // not UTF-8
			fmt.Fprintf(&b, `\u%04x`, s[0])
		case unicode.IsPrint(r), strings.ContainsRune(keep, r):
			b.WriteString(s[:n])
		case high != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// Short rounds a duration for display.
func Short(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
