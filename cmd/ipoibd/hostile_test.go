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

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

// hostile is a name that a process, a device, a host or a peer's daemon may have. It
// clears the screen, sets the title, ends the line and the column, and reverses the
// direction of text, with C0 and C1 controls, in UTF-8 and as raw bytes.
const hostile = "x\x1b[2J\x1b]0;t\x07\nipoibd: forged\r\t\x7f\u009b31m\x9b31m\u202e\u2028"

// fill sets every string in v to text and puts one entry into every list and map.
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
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text)
		fill(value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Uint64:
		v.SetUint(7) // zero counters are not shown
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
	default: // smaller numbers are enumerations; zero will do
	}
}

func filled[T any](text string) T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), text)
	return v
}

// outputs returns everything that the program prints, with text in place of every
// string that comes from outside.
func outputs(text string) map[string]func(out io.Writer) error {
	logTo := func(format string) func(io.Writer) error {
		return func(out io.Writer) error {
			handler, err := logFormat("info", format)
			if err != nil {
				return err
			}
			log := slog.New(process.LimitLog(handler(out)))
			log.With("interface", text).Warn(text, "err", fmt.Errorf("taken by %s", text), "names", []string{text}, text, 1)
			return nil
		}
	}
	status, entry := filled[report.Status](text), filled[journal.Entry](text)
	status.Devices[0].State = report.DeviceOpen // so that everything is shown
	closed := filled[report.Status](text)
	ended := entry
	ended.Kind = journal.KindRecovered
	entries := filled[[]backend.Entry](text)
	return map[string]func(io.Writer) error{
		"status -v":             func(out io.Writer) error { return printStatus(out, &status, true) },
		"status":                func(out io.Writer) error { return printStatus(out, &status, false) },
		"status, closed":        func(out io.Writer) error { return printStatus(out, &closed, true) },
		"status --json":         func(out io.Writer) error { return json.NewEncoder(out).Encode(status) },
		"events":                func(out io.Writer) error { return printEntry(out, entry) },
		"events, ended":         func(out io.Writer) error { return printEntry(out, ended) },
		"events --json":         func(out io.Writer) error { return json.NewEncoder(out).Encode(entry) },
		"devices":               func(out io.Writer) error { return printEntries(out, entries) },
		"devices --json":        func(out io.Writer) error { return json.NewEncoder(out).Encode(entries) },
		"log":                   logTo("text"),
		"log --log-format json": logTo("json"),
		"error": func(out io.Writer) error {
			printError(out, fmt.Errorf("port taken by %s", text))
			return nil
		},
	}
}

// The program prints nothing that a terminal acts on, and no text from outside starts
// a line of its own.
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
				t.Errorf("control characters in the output: %q", &got)
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

// starts counts the lines that do not continue the line before.
func starts(text string) (n int) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") {
			n++
		}
	}
	return n
}
