package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
)

// reference returns docs/config.md, whose tables of fields, the list of their flags, and the live fields in the table
// of "Reload", are made from the tables of package config. The last column of the fields is written by hand. With
// -update, it rewrites the page.
func reference(t *testing.T) string {
	t.Helper()
	stored := readManual(t, "docs/config.md")
	made := between(stored, "Paths are absolute. `null` stands for the default.\n\n", "```yaml\ncontrol:", func(text string) string {
		text, devices, _ := strings.Cut(text, "Each of `devices`:\n")
		devices, interfaces, _ := strings.Cut(devices, "Each of `interfaces`:\n")
		own, device, iface := config.New(), config.NewDevice(), config.NewInterface()
		return rows(config.Fields, &own, text) +
			"\nEach of `devices`:\n\n" + rows(config.DeviceFields, &device, devices) +
			"\nEach of `interfaces`:\n\n" + rows(config.InterfaceFields, &iface, interfaces) + "\n"
	})
	made = between(made, "`routes`:\n\n", "\nSIGINT", func(string) string {
		all := slices.Concat(flags(config.Fields), flags(config.DeviceFields), flags(config.InterfaceFields))
		return strings.Join(all, ", ") + ".\n"
	})
	for before, names := range map[string]string{
		"| device | ": live(config.DeviceFields, true), "| interface | ": live(config.InterfaceFields, true),
		"| daemon | | | ": live(config.Fields, false),
	} {
		made = regexp.MustCompile("(?m)^"+regexp.QuoteMeta(before)+"`\\w+`(, `\\w+`)*").ReplaceAllString(made, before+names)
	}
	if *update {
		if err := os.WriteFile("../../docs/config.md", []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if made != stored {
		t.Error("docs/config.md is not up to date: run 'make man'")
	}
	return made
}

// between replaces the text between two others.
func between(page, first, last string, by func(string) string) string {
	head, rest, ok := strings.Cut(page, first)
	text, tail, also := strings.Cut(rest, last)
	if !ok || !also {
		panic(fmt.Sprintf("docs/config.md has no text between %q and %q", first, last))
	}
	return head + first + by(text) + last + tail
}

// rows returns the rows of fields, with the conditions in the former text.
func rows[T any](table config.Table[T], x *T, former string) string {
	out := "| field | default | meaning | condition |\n|---|---|---|---|\n"
	only := map[config.Kind][]string{}
	for _, f := range table {
		condition := ""
		m := regexp.MustCompile("(?m)^\\| `" + f.Name + "` \\|.*\\| ([^|]+) \\|$").FindStringSubmatch(former)
		if m != nil {
			condition = " " + m[1]
		}
		meaning := strings.ReplaceAll(f.Help, "`", "")
		out += fmt.Sprintf("| `%s` |%s | %s |%s |\n", f.Name, defaultCell(f, x), meaning, condition)
		only[f.Only] = append(only[f.Only], "`"+f.Name+"`")
	}
	if soft, rdma := only[config.KindSoft], only[config.KindRDMA]; len(soft) > 0 {
		out += fmt.Sprintf("\nOnly the software HCA has %s; only real HCAs have %s.\n", strings.Join(soft, ", "), strings.Join(rdma, ", "))
	}
	return out
}

// defaultCell returns a field's default in a table, after a space.
func defaultCell[T any](f config.Field[T], x *T) string {
	switch v := reflect.ValueOf(f.Of(x)).Elem(); {
	case f.Default != "":
		return " " + strings.ReplaceAll(f.Default, "--", "")
	case v.Type() == reflect.TypeFor[[]string]():
		return " `[]`"
	case v.IsZero() && v.Kind() != reflect.Bool:
		return ""
	case v.Addr().Type().Implements(reflect.TypeFor[fmt.Stringer]()):
		return fmt.Sprintf(" `%s`", v.Addr())
	default:
		return fmt.Sprintf(" `%v`", v)
	}
}

// flags returns the flags of fields.
func flags[T any](table config.Table[T]) (names []string) {
	for _, f := range table {
		if f.Flag != "" {
			names = append(names, "`--"+f.Flag+"`")
		}
	}
	return names
}

// live returns the names of the fields that change at run time, or of the others.
func live[T any](table config.Table[T], want bool) string {
	var names []string
	for _, f := range table {
		if f.Live == want {
			names = append(names, "`"+f.Name+"`")
		}
	}
	return strings.Join(names, ", ")
}
