package scripts_test

import (
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "ipoibd"
	root     = ".."
	tableDoc = "../docs/architecture.md"
)

// embedded is the software HCA, which on the in-memory fabric serves tests as
// the device that a test needs.
var embedded = []string{"hca/soft", "hca/soft/udp"}

// impure are imports that a pure package has no use for: it gets time, chance,
// input and output from its caller. sync/atomic is not among them, since a
// published snapshot is a pointer swapped whole.
var impure = []string{
	"context", "crypto/rand", "log", "log/slog", "math/rand", "math/rand/v2", "net", "os", "sync", "syscall",
}

// row is what the table says of one package, or of all that a pattern matches.
type row struct {
	imports  []string // of ours
	anything bool     // "anything above": all but test doubles
	double   bool     // a test double, for test files only
	pure     bool
}

func (r row) allows(imported string, rows map[string]row) bool {
	if r.anything {
		target, ok := lookup(rows, imported)
		return ok && !target.double
	}
	return slices.Contains(r.imports, imported)
}

func (r row) allowsTest(self, imported string, rows map[string]row) bool {
	target, _ := lookup(rows, imported)
	return imported == self || target.double || slices.Contains(embedded, imported) || r.allows(imported, rows)
}

// lookup finds the row of a package, by its path or by a pattern.
func lookup(rows map[string]row, pkg string) (row, bool) {
	if r, ok := rows[pkg]; ok {
		return r, true
	}
	r, ok := rows[path.Dir(pkg)+"/*"]
	return r, ok
}

var code = regexp.MustCompile("`([^`]+)`")

// readTable reads the rows of the document's table of imports:
// | `package` | what | imports of ours |.
func readTable(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile(tableDoc)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]row{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) == 5 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			addRow(rows, cells[1], cells[2], cells[3])
		}
	}
	return rows
}

// addRow adds a row; a package that its second cell names besides (a path
// beneath the first) has the same rules.
func addRow(rows map[string]row, name, what, imports string) {
	r := row{
		imports:  names(imports),
		anything: strings.Contains(imports, "anything above"),
		pure:     strings.Contains(what, "pure"),
	}
	for _, pkg := range names(name) {
		r.double = strings.Contains(what, "test double") || strings.HasSuffix(pkg, "test")
		rows[pkg] = r
		for _, beneath := range names(what) {
			if strings.HasPrefix(beneath, pkg+"/") {
				rows[beneath] = r
			}
		}
	}
}

func names(cell string) (out []string) {
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// inModule is an import path within the module, or else "".
func inModule(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, module+"/"); ok {
		return rest
	}
	return ""
}

// readPackages reads the tree's packages in this process, so that go test knows
// what a cached result depends on. Dir is the path within the module.
func readPackages(t *testing.T) (out []build.Package) {
	t.Helper()
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != root && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		p, err := build.ImportDir(dir, 0)
		var empty *build.NoGoError
		if errors.As(err, &empty) {
			return nil
		}
		if err == nil {
			p.Dir, err = filepath.Rel(root, dir)
			out = append(out, *p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImports(t *testing.T) {
	rows := readTable(t)
	packages := readPackages(t)
	if len(packages) < len(rows)/2 {
		t.Errorf("found %d packages only", len(packages))
	}
	for _, p := range packages {
		r, ok := lookup(rows, p.Dir)
		if !ok {
			t.Errorf("%s has no row in the table of %s", p.Dir, tableDoc)
		}
		for _, complaint := range complaints(p, r, rows) {
			t.Error(complaint)
		}
	}
}

// complaints lists the imports of a package that its row does not allow.
func complaints(p build.Package, r row, rows map[string]row) (out []string) {
	for _, imported := range p.Imports {
		if ours := inModule(imported); ours != "" && !r.allows(ours, rows) {
			out = append(out, p.Dir+" must not import "+ours)
		}
		if r.pure && slices.Contains(impure, imported) {
			out = append(out, p.Dir+" is pure and must not import "+imported)
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		if ours := inModule(imported); ours != "" && !r.allowsTest(p.Dir, ours, rows) {
			out = append(out, "tests of "+p.Dir+" must not import "+ours)
		}
	}
	return out
}

// The table is read as people read it: a change of its form must not leave the
// check without rules.
func TestTableIsUnderstood(t *testing.T) {
	rows := readTable(t)
	for _, pkg := range []string{"hca", "hca/roce", "hca/soft", "ud", "neigh", "link", "cmd/ipoibd/internal/*"} {
		if _, ok := rows[pkg]; !ok {
			t.Errorf("no row for %s", pkg)
		}
	}
	if !rows["hca/roce"].pure || !slices.Equal(rows["hca/roce"].imports, []string{"hca"}) {
		t.Errorf("hca/roce: %+v", rows["hca/roce"])
	}
	if !rows["hca/soft/memfabric"].double || !rows["link/linktest/nstest"].double || rows["link"].double {
		t.Error("test doubles are not told apart")
	}
	if !rows["cmd/ipoibd/internal/*"].anything {
		t.Errorf("shells: %+v", rows["cmd/ipoibd/internal/*"])
	}
}

func TestComplaints(t *testing.T) {
	rows := readTable(t)
	for _, c := range []struct {
		pkg  build.Package
		want []string
	}{
		{
			build.Package{Dir: "link", Imports: []string{"os", "ipoibd/hca"}},
			[]string{"link must not import hca"},
		},
		{
			build.Package{Dir: "neigh", Imports: []string{"sync", "ipoibd/hca"}},
			[]string{"neigh is pure and must not import sync"},
		},
		{
			build.Package{Dir: "cmd/ipoibd/internal/iface", Imports: []string{"ipoibd/ud", "ipoibd/link/linktest"}},
			[]string{"cmd/ipoibd/internal/iface must not import link/linktest"},
		},
		{
			build.Package{Dir: "ud", TestImports: []string{"ipoibd/hca/soft/memfabric", "ipoibd/neigh"}},
			[]string{"tests of ud must not import neigh"},
		},
		{build.Package{Dir: "hca", XTestImports: []string{"ipoibd/hca", "ipoibd/hca/hcatest"}}, nil},
	} {
		r, _ := lookup(rows, c.pkg.Dir)
		if got := complaints(c.pkg, r, rows); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.pkg.Dir, got, c.want)
		}
	}
}
