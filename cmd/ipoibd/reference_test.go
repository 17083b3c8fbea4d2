package main

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/config"
)

// meanings returns the meaning of each field in docs/config.md: control, devices.grace...
func meanings(t *testing.T) map[string]string {
	t.Helper()
	_, text, _ := strings.Cut(readManual(t, "docs/config.md"), "## Fields of a file")
	text, _, _ = strings.Cut(text, "\n## ")
	out, within := map[string]string{}, ""
	for line := range strings.Lines(text) {
		if m := regexp.MustCompile("^Each of `(\\w+)`:").FindStringSubmatch(line); m != nil {
			within = m[1] + "."
		}
		if m := regexp.MustCompile("^\\| `(\\w+)` \\| [^|]*\\| (.*) \\|$").FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			out[within+m[1]] = m[2]
		}
	}
	return out
}

// refused reports whether a field is a mistake with a value. Devices of hardware have no other
// settings of the software HCA.
func refused(t *testing.T, field, value string) bool {
	t.Helper()
	group, name, _ := strings.Cut(field, ".")
	at := field
	var text string
	switch group {
	case "devices":
		at = "devices[0]." + name
		text = fmt.Sprintf("devices: [{%s: %s}]\ninterfaces: [{name: ib0}]\n", name, value)
	case "interfaces":
		at = "interfaces[0]." + name
		device := "device: rxe0"
		if name == "pkey" {
			device = "pkeys: [" + value + "]"
		}
		text = fmt.Sprintf("devices: [{%s}]\ninterfaces: [{%s: %s}]\n", device, name, value)
	default:
		text = field + ": " + value + "\ninterfaces: [{name: ib0}]\n"
	}
	_, err := config.Parse("c.yaml", []byte(text))
	mistakes, _ := errors.AsType[config.Mistakes](err)
	if err != nil && mistakes == nil {
		t.Fatalf("%s: %v", field, err)
	}
	return slices.ContainsFunc(mistakes, func(m *config.Mistake) bool { return m.Field == at })
}

// list is a value with n different elements.
func list(n int64, element func(i int64) string) string {
	var all []string
	for i := range n {
		all = append(all, element(i))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func host(i int64) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }

// ofSize makes a value of a size for fields whose ranges are sizes.
var ofSize = map[string]func(n int64) string{
	"control":              func(n int64) string { return "/" + strings.Repeat("c", int(n)-1) },
	"devices.pkeys":        func(n int64) string { return list(n, func(i int64) string { return strconv.Itoa(int(i) + 1) }) },
	"devices.peers":        func(n int64) string { return list(n, host) },
	"interfaces.name":      func(n int64) string { return `"` + strings.Repeat("i", int(n)) + `"` },
	"interfaces.netdev":    func(n int64) string { return `"` + strings.Repeat("i", int(n)) + `"` },
	"interfaces.owner":     func(n int64) string { return `"` + strings.Repeat("o", int(n)) + `"` },
	"interfaces.addresses": func(n int64) string { return list(n, func(i int64) string { return host(i+1) + "/8" }) },
	"interfaces.routes":    func(n int64) string { return list(n, func(i int64) string { return host(i) + "/32" }) },
}

// number reads a number or a duration of the manual; print writes it for the file.
func number(text string) (n int64, print func(int64) string, ok bool) {
	if d, err := time.ParseDuration(text); err == nil && text != "0" {
		return int64(d), func(n int64) string { return time.Duration(n).String() }, true
	}
	n, err := strconv.ParseInt(text, 0, 64)
	return n, func(n int64) string { return strconv.FormatInt(n, 10) }, err == nil
}

// none stands for a range without a least value.
const none = math.MinInt64

// rangeOf reads the range in the meaning of a field, "4 to 7" or "at most 7". Without one, it
// returns no print.
func rangeOf(meaning string) (least, most int64, print func(int64) string) {
	for _, m := range regexp.MustCompile(`(\w+) to (\w+)\b`).FindAllStringSubmatch(meaning, -1) {
		least, print, ok := number(m[1])
		if most, _, also := number(m[2]); ok && also {
			return least, most, print
		}
	}
	if m := regexp.MustCompile(`at most (\d+)`).FindStringSubmatch(meaning); m != nil {
		most, print, _ = number(m[1])
	}
	return none, most, print
}

// The ranges in docs/config.md are those of the code: their bounds are accepted, and what is just
// beyond them is a mistake. Every field that is a number, a duration or a list has a range.
func TestReferenceHasTheRanges(t *testing.T) {
	ranges := 0
	for field, meaning := range meanings(t) {
		least, most, print := rangeOf(meaning)
		if print == nil {
			if needsRange(field) {
				t.Errorf("%s has no range: %s", field, meaning)
			}
			continue
		}
		ranges++
		if make := ofSize[field]; make != nil {
			print = make
		}
		if refused(t, field, print(most)) || !refused(t, field, print(most+1)) {
			t.Errorf("%s: its most is not %d: %s", field, most, meaning)
		}
		if least != none && (refused(t, field, print(least)) || !refused(t, field, print(least-1))) {
			t.Errorf("%s: its least is not %d: %s", field, least, meaning)
		}
	}
	if t.Logf("%d ranges", ranges); ranges < 12 {
		t.Error("found less than 12 ranges: does the expression still match?")
	}
}

// needsRange reports whether a field is a number, a duration or a list of texts or numbers, and not
// one of a few values.
func needsRange(field string) bool {
	group, name, _ := strings.Cut(field, ".")
	of := map[string]reflect.Type{"devices": reflect.TypeFor[config.Device](), "interfaces": reflect.TypeFor[config.Interface]()}[group]
	if of == nil || name == "" || name == "lanes" {
		return false
	}
	for _, f := range reflect.VisibleFields(of) {
		if f.Tag.Get("json") == name {
			kind := f.Type.Kind()
			return f.Type.Kind() == reflect.Pointer || kind == reflect.Slice || kind >= reflect.Int && kind <= reflect.Uint64
		}
	}
	return false
}

// The values that docs/config.md lists for lanes and reset are all that are accepted.
func TestReferenceHasTheValues(t *testing.T) {
	all := meanings(t)
	for n := range 2 * config.MaxLanes {
		if listed := regexp.MustCompile(fmt.Sprintf(`lanes, [^.]*\b%d\b`, n)).MatchString(all["devices.lanes"]); listed == refused(t, "devices.lanes", strconv.Itoa(n)) {
			t.Errorf("%d lanes: listed %v: %s", n, listed, all["devices.lanes"])
		}
	}
	var resets []config.Reset
	_, listed, _ := strings.Cut(all["devices.reset"], ": ")
	for _, word := range regexp.MustCompile(`[a-z]+`).FindAllString(strings.Split(listed, "|")[0], -1) {
		if word != "or" {
			resets = append(resets, config.Reset(word))
		}
	}
	if !slices.Equal(resets, config.Resets) {
		t.Errorf("ways to reset: %q, want %q", resets, config.Resets)
	}
}

// docs/config.md names the flag without a variable; every other flag can be set by one.
func TestReferenceHasTheVariables(t *testing.T) {
	_, text, _ := strings.Cut(readManual(t, "docs/config.md"), "## Environment")
	sentence := regexp.MustCompile("(?m)^(`--.*) has no variable").FindStringSubmatch(text)
	if sentence == nil {
		t.Fatal("the page no longer says which flags has no variable")
	}
	runCommand().Flags().VisitAll(func(f *pflag.Flag) {
		none := strings.Contains(sentence[1], "`--"+f.Name+"`")
		if got := variableOf(runCommand(), f) == ""; got != none {
			t.Errorf("--%s has no variable: %v, the page says %v", f.Name, got, none)
		}
	})
}
