package main

import (
	"errors"
	"reflect"
	"regexp"
	"testing"
	"testing/fstest"
)

const diff = `
--- a/x.go
+++ b/x.go
@@ -1 +1 @@
-Breaks: nothing, this is of the diff
+Test: neither
`

func TestParse(t *testing.T) {
	text := "Breaks: it does nothing.\nTest: m/a TestR06A\nTest: m/b TestB/R06/sub\n" + diff
	want := mutant{
		name: "R06-do-nothing", requirement: 6, breaks: "it does nothing",
		tests: []test{{"m/a", "TestR06A"}, {"m/b", "TestB/R06/sub"}},
	}
	if got, err := parse("R06-do-nothing", text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if want.file() != "scripts/mutants/testdata/R06-do-nothing.patch" {
		t.Error(want.file())
	}
}

func TestParseRefuses(t *testing.T) {
	const breaks, names = "Breaks: it.\n", "Test: m/a TestR06A\n"
	for what, c := range map[string]struct{ name, text string }{
		"no requirement in the name": {"skip-a-rung", breaks + names + diff},
		"no name besides":            {"R06", breaks + names + diff},
		"what it breaks is missing":  {"R06-x", names + diff},
		"no test":                    {"R06-x", breaks + diff},
		"a test without package":     {"R06-x", breaks + "Test: TestR06A\n" + diff},
		"a test with flags":          {"R06-x", breaks + "Test: m/a TestR06A -v\n" + diff},
		"a test of something else":   {"R06-x", breaks + "Test: m/a TestR07A\n" + diff},
		"text before the diff":       {"R06-x", breaks + names + "and more\n" + diff},
		"nothing":                    {"R06-x", ""},
	} {
		if m, err := parse(c.name, c.text); !errors.Is(err, errBadPatch) {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
}

func TestLoad(t *testing.T) {
	good := &fstest.MapFile{Data: []byte("Breaks: it.\nTest: m/a TestR09A\n" + diff)}
	tree := fstest.MapFS{
		patches + "/R10-b.patch": {Data: []byte("Breaks: it.\nTest: m/a TestR10B\n" + diff)},
		patches + "/R09-a.patch": good,
		patches + "/readme.txt":  {},
		"R09-c.patch":            good,
	}
	all, err := load(tree)
	if err != nil || len(all) != 2 || all[0].name != "R09-a" || all[1].name != "R10-b" {
		t.Errorf("%+v, %v", all, err)
	}
	tree[patches+"/R11-bad.patch"] = good
	if _, err := load(tree); !errors.Is(err, errBadPatch) {
		t.Errorf("a bad patch: %v", err)
	}
}

// A pattern takes the test, what it is a part of and its own parts, nothing else.
func TestPattern(t *testing.T) {
	p := test{"m", "TestA/R06/a.b"}.pattern()
	if p != `^TestA$/^R06$/^a\.b$` {
		t.Error(p)
	}
	if plain := (test{"m", "TestR06"}).pattern(); regexp.MustCompile(plain).MatchString("TestR06B") {
		t.Error(plain)
	}
}
