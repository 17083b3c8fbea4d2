package main

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

const root = "../.."

// The page in the tree is what the tree says.
func TestPageIsCurrent(t *testing.T) {
	found, err := scan(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(root + "/" + pagePath)
	if err != nil {
		t.Fatalf("%v: mend it with\n\t%s", err, regen)
	}
	if string(have) != page(found) {
		t.Errorf("%s is not what the tests' names and the comments say: mend it with\n\t%s", pagePath, regen)
	}
}

// Each link leads to a file.
func TestLinks(t *testing.T) {
	found, err := scan(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(page(found), -1)
	if len(targets) < len(requirements) {
		t.Errorf("%d links only", len(targets))
	}
	for _, m := range targets {
		if _, err := os.Stat(root + "/qprecovery/" + m[1]); err != nil {
			t.Error(err)
		}
	}
}

func TestEveryRequirementIsTold(t *testing.T) {
	if len(requirements) != 30 {
		t.Errorf("%d requirements", len(requirements)-1)
	}
	for number, says := range requirements[1:] {
		if says == "" || strings.ContainsAny(says, "|\n") {
			t.Errorf("R%d: %q", number+1, says)
		}
	}
}

// tree is a file system of files given as path, text, path, text...
func tree(files ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		fsys[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return fsys
}

func TestScan(t *testing.T) {
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  map[int]evidence
	}{
		{
			"tests",
			tree("ud/ud_test.go", "package ud\nfunc TestR07Peers(t *testing.T) {}\nfunc TestR11R15R16All(t *testing.T) {}\nfunc TestR7(t *testing.T) {}"),
			map[int]evidence{
				7:  {tests: []place{{"ud/ud_test.go", "TestR07Peers"}, {"ud/ud_test.go", "TestR7"}}},
				11: {tests: []place{{"ud/ud_test.go", "TestR11R15R16All"}}},
				15: {tests: []place{{"ud/ud_test.go", "TestR11R15R16All"}}},
				16: {tests: []place{{"ud/ud_test.go", "TestR11R15R16All"}}},
			},
		},
		{
			"no tests",
			tree(
				"ud/ud_test.go", "package ud\n// R7\nfunc (x) TestR07Method() {}\nfunc TestRFC4391() {}\nfunc testR08() {}\nvar s = \"R9\"",
				"ud/testdata/x_test.go", "package x\nfunc TestR07() {}",
				"ud/_old/x_test.go", "package x\nfunc TestR07() {}",
				".git/x_test.go", "package x\nfunc TestR07() {}",
				"scripts/requirements/x_test.go", "package x\nfunc TestR07() {}",
				"ud/readme.txt", "TestR07",
			),
			nil,
		},
		{
			"subtests",
			tree("cmd/x_test.go", "package x\nfunc TestX() {\nt.Run(\"R25/a fatal event\", f)\nt.Run(\"R25/a fatal event\", f)\nt.Run(\"R26/\"+name, f)\nt.Run(fmt.Sprintf(`R27/%-3d of %v`, 1, 2), f)\n}"),
			map[int]evidence{
				25: {tests: []place{{"cmd/x_test.go", "R25/a_fatal_event"}}},
				26: {tests: []place{{"cmd/x_test.go", "R26/…"}}},
				27: {tests: []place{{"cmd/x_test.go", "R27/…_of_…"}}},
			},
		},
		{
			"transcripts",
			tree(
				"q/q_test.go", "package q\nvar files = \"testdata/*.txt\"\nvar more = `testdata/R01-*`",
				"q/testdata/R01-cq-error.txt", "",
				"q/testdata/R02.txt", "",
				"q/testdata/other.txt", "",
				"p/p_test.go", "package p\nvar file = \"testdata/one.txt\"",
				"p/testdata/R03-unplayed.txt", "",
			),
			map[int]evidence{1: {tests: []place{{"q/testdata/R01-cq-error.txt", "R01/cq-error"}}}},
		},
		{
			"code",
			tree(
				"ud/ud.go", "package ud\n// Recovers (R1, R02).\nvar x = 1 // R1 again\nvar y = \"R3\" /* XR4, R5x, R100 */",
				"hca/guard/g.go", "// Package guard has R18-R20.\npackage guard",
				"qprecovery/a/b/c.go", "package c // R6",
				"udx/u.go", "package udx // R7",
				"hca/hca.go", "package hca // R8",
				"hca/guard/sub/s.go", "package sub // R9",
			),
			map[int]evidence{
				1:  {code: []string{"ud/ud.go"}},
				2:  {code: []string{"ud/ud.go"}},
				6:  {code: []string{"qprecovery/a/b/c.go"}},
				18: {code: []string{"hca/guard/g.go"}},
				19: {code: []string{"hca/guard/g.go"}},
				20: {code: []string{"hca/guard/g.go"}},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := scan(c.files)
			if err != nil {
				t.Fatal(err)
			}
			for number, e := range got {
				if want := c.want[number]; !reflect.DeepEqual(e, want) {
					t.Errorf("R%d: %+v, want %+v", number, e, want)
				}
			}
		})
	}
}

func TestScanRefuses(t *testing.T) {
	for name, fsys := range map[string]fstest.MapFS{
		"test":       tree("a_test.go", "package a\nfunc TestR30Most() {}"),
		"none":       tree("a_test.go", "package a\nfunc TestR00() {}"),
		"huge":       tree("a_test.go", "package a\nfunc TestR99999999999999999999() {}"),
		"subtest":    tree("a_test.go", "package a\nvar x = \"R31/a\""),
		"transcript": tree("a_test.go", "package a\nvar x = \"testdata/*\"", "testdata/R32-a.txt", ""),
		"comment":    tree("ud/a.go", "package ud // R33"),
		"range":      tree("ud/a.go", "package ud // R28-R30"),
	} {
		if _, err := scan(fsys); !errors.Is(err, errUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := scan(tree("a_test.go", "package")); err == nil {
		t.Error("a file that does not parse is read")
	}
}

func TestPage(t *testing.T) {
	var f findings
	f[1] = evidence{
		code:  []string{"qprecovery/table.go", "hca/guard/cq.go"},
		tests: []place{{"qprecovery/testdata/R01-cq.txt", "R01/cq"}, {"cmd/x_test.go", "R01/a|b"}},
	}
	text := page(&f)
	for _, want := range []string{
		"\n1 of 29 requirements have a test.\n",
		"| R1 | " + requirements[1] + " | [`qprecovery/table.go`](table.go)<br>[`hca/guard/cq.go`](../hca/guard/cq.go)" +
			" | [`R01/cq`](testdata/R01-cq.txt)<br>[`R01/a\\|b`](../cmd/x_test.go) |\n",
		"| R29 | " + requirements[29] + " | — | **not yet** |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestRunWritesWhatItPrints(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("qprecovery", 0o755); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := run(&printed, false); err != nil {
		t.Fatal(err)
	}
	if err := run(&printed, true); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(pagePath)
	if err != nil || string(written) != printed.String() {
		t.Errorf("%v, %q, want %q", err, written, printed.String())
	}
}
