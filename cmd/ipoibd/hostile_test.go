package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/inventory"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/logline"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

// hostile is a name as a process, a device, a host or a peer's daemon may bear it:
// it clears the screen, sets the title, ends the line and the column, and turns
// the direction of text; in C0, in C1, as UTF-8 and as bytes.
const hostile = "x\x1b[2J\x1b]0;t\x07\nipoibd: forged\r\t\x7f\u009b31m\x9b31m\u202e\u2028"

// fill sets every string within v to text, and gives every list an entry.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Uint64:
		v.SetUint(7) // a counter that is shown
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			*t = time.Unix(1e9, 0).UTC()
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text)
			}
		}
	default: // small numbers are enumerations, whose zero is as good as any
	}
}

func filled[T any](text string) T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), text)
	return v
}

// outputs are all that the program prints, with text wherever a string comes from
// outside of it.
func outputs(text string) map[string]func(out io.Writer) error {
	logTo := func(format string) func(io.Writer) error {
		return func(out io.Writer) error {
			handler, err := logFormat("info", format)
			if err != nil {
				return err
			}
			log := slog.New(logline.Limit(handler(out)))
			log.With("interface", text).Warn(text, "err", fmt.Errorf("taken by %s", text), "names", []string{text}, text, 1)
			return nil
		}
	}
	status, entry := filled[control.Status](text), filled[journal.Entry](text)
	status.Devices[0].State = control.StateOpen // all of it is shown
	closed := filled[control.Status](text)
	ended := entry
	ended.Kind = journal.KindRecovered
	entries := filled[[]inventory.Entry](text)
	return map[string]func(io.Writer) error{
		"status":                func(out io.Writer) error { return printStatus(out, &status, time.Now()) },
		"status, closed":        func(out io.Writer) error { return printStatus(out, &closed, time.Now()) },
		"status --json":         func(out io.Writer) error { return json.NewEncoder(out).Encode(status) },
		"events":                func(out io.Writer) error { return printEntry(out, entry) },
		"events, ended":         func(out io.Writer) error { return printEntry(out, ended) },
		"events --json":         func(out io.Writer) error { return json.NewEncoder(out).Encode(entry) },
		"devices":               func(out io.Writer) error { return printEntries(out, entries) },
		"devices --json":        func(out io.Writer) error { return json.NewEncoder(out).Encode(entries) },
		"log":                   logTo("text"),
		"log --log-format json": logTo("json"),
		"error": func(out io.Writer) error {
			report(out, fmt.Errorf("port taken by %s", text))
			return nil
		},
	}
}

// Whatever names and texts come from outside, nothing is printed that a terminal
// acts on, and no text makes a line of its own.
func TestNothingPrintedControlsATerminal(t *testing.T) {
	harmless := outputs("x")
	for name, print := range outputs(hostile) {
		t.Run(name, func(t *testing.T) {
			var want, got bytes.Buffer
			if err := harmless[name](terminal.Writer{W: &want}); err != nil {
				t.Fatal(err)
			}
			if err := print(terminal.Writer{W: &got}); err != nil {
				t.Fatal(err)
			}
			if !utf8.Valid(got.Bytes()) || strings.ContainsFunc(got.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("%q", &got)
			}
			if w, g := starts(want.String()), starts(got.String()); w != g {
				t.Errorf("%d lines that begin without a space, want %d:\n%s", g, w, &got)
			}
			if !strings.Contains(got.String(), "forged") {
				t.Errorf("the text is not shown at all:\n%s", &got)
			}
		})
	}
}

// starts counts the lines that do not continue one before.
func starts(text string) (n int) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") {
			n++
		}
	}
	return n
}
