// Package capsuletest checks that the format of a part of a capsule outlives versions.
package capsuletest

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden file of the present version")

// Check checks a part's type, of which zero is a value with its defaults, against testdata/capsule, which has a file
// for each version that could write the part:
//
//   - Each field has a JSON name of its own, or "-".
//   - What the present version writes is in its file, so that a change of the format is seen in a review.
//   - What an earlier version wrote is understood: each field has the value that it had. A field may be dropped only if
//     its name is in dropped.
func Check(t *testing.T, part string, zero any, dropped ...string) {
	t.Helper()
	typ := reflect.TypeOf(zero)
	for _, path := range unnamed(typ, typ.Name(), map[reflect.Type]bool{}) {
		t.Errorf("%s has no JSON name", path)
	}
	is := written(t, typ)
	dir := filepath.Join("testdata", "capsule")
	now := filepath.Join(dir, part+"-"+version(t)+".json")
	if *update {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(now, []byte(is), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(now); err != nil || string(text) != is {
		t.Errorf("%s differs from what this version writes (%v): run the test with -update, and check that earlier "+
			"versions understand it\n%s", now, err, is)
	}
	files, err := filepath.Glob(filepath.Join(dir, part+"-*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		paths, err := lost(text, zero)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, path := range paths {
			if !slices.Contains(dropped, path) {
				t.Errorf("%s: %s is not understood", file, path)
			}
		}
	}
}

// written returns what a part of a type looks like.
func written(t *testing.T, typ reflect.Type) string {
	t.Helper()
	full := reflect.New(typ)
	fill(full.Elem(), 0)
	text, err := json.MarshalIndent(full.Interface(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// lost returns the paths of the values in a text that a value of zero's type does not have after it was decoded.
func lost(text []byte, zero any) ([]string, error) {
	v := reflect.New(reflect.TypeOf(zero))
	v.Elem().Set(reflect.ValueOf(zero))
	if err := json.Unmarshal(text, v.Interface()); err != nil {
		return nil, err
	}
	again, err := json.Marshal(v.Interface())
	if err != nil {
		return nil, err
	}
	var was, kept any
	if err := errors.Join(json.Unmarshal(text, &was), json.Unmarshal(again, &kept)); err != nil {
		return nil, err
	}
	return missing(was, kept, ""), nil
}

// version returns the present version, the newest in the changelog.
func version(t *testing.T) string {
	t.Helper()
	for dir := "."; ; dir = filepath.Join("..", dir) {
		text, err := os.ReadFile(filepath.Join(dir, "docs", "CHANGELOG.md"))
		if err == nil {
			return regexp.MustCompile(`(?m)^## (\S+)`).FindStringSubmatch(string(text))[1]
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			t.Fatal("there is no docs/CHANGELOG.md beside go.mod")
		}
	}
}

// missing returns the paths of the values of was that are has not, or has with another value.
func missing(was, is any, at string) (paths []string) {
	switch w := was.(type) {
	case map[string]any:
		i, ok := is.(map[string]any)
		if !ok {
			return []string{at}
		}
		for name, v := range w {
			paths = append(paths, missing(v, i[name], strings.TrimPrefix(at+"."+name, "."))...)
		}
	case []any:
		i, ok := is.([]any)
		if !ok || len(i) != len(w) {
			return []string{at}
		}
		for n, v := range w {
			paths = append(paths, missing(v, i[n], at)...)
		}
	default:
		if was != is {
			return []string{at}
		}
	}
	return paths
}

// unnamed returns the exported fields without a JSON name that can be reached from a type. Types that write themselves
// are not examined.
func unnamed(t reflect.Type, at string, seen map[reflect.Type]bool) (paths []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return unnamed(t.Elem(), at, seen)
	case reflect.Struct:
	default:
		return nil
	}
	if seen[t] || writesItself(t) {
		return nil
	}
	seen[t] = true
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		if f.IsExported() && !f.Anonymous && name == "" {
			paths = append(paths, at+"."+f.Name)
		}
		if name != "-" {
			paths = append(paths, unnamed(f.Type, at+"."+f.Name, seen)...)
		}
	}
	return paths
}

func writesItself(t reflect.Type) bool {
	for _, name := range []string{"MarshalText", "MarshalJSON"} {
		if _, ok := t.MethodByName(name); ok {
			return true
		}
	}
	return false
}

// fill gives each field a value that is neither zero nor a likely default, the same in each run.
func fill(v reflect.Value, depth int) {
	if depth > 20 {
		panic(fmt.Sprintf("%s contains itself", v.Type()))
	}
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC)))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
		return
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage(`{"name":"ib7"}`)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(1)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(3)
	default:
		panic(fmt.Sprintf("no value for a %s", v.Type()))
	}
}
