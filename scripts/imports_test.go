package scripts_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
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
	shells   = "cmd/ipoibd/internal/"
)

// embedded is the software HCA, which on the in-memory fabric serves tests as
// the device that a test needs.
var embedded = []string{"hca/soft", "hca/soft/udp"}

// impure are imports, with all below them, that a pure package has no use for: it
// gets time, chance, input and output from its caller. Exempt are addresses, and
// the pointer by which a snapshot is published whole.
var (
	impure = []string{"context", "crypto/rand", "golang.org/x/sys", "log", "math/rand", "net", "os", "sync", "syscall"}
	exempt = []string{"net/netip", "sync/atomic"}
	// clock are the names in package time that a pure package does not use.
	clock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}
)

// row is what the tables say of one package.
type row struct {
	imports, inTests []string // of ours
	double           bool     // a test double, for test files only
	pure             bool
	except           []string // impure imports that it may have
}

var code = regexp.MustCompile("`([^`]+)`")

// readTables reads the rows of the document's tables of imports,
// | `package` | what | imports of ours |. Where the first column is headed shell,
// names without a path are those of shells.
func readTables(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile(tableDoc)
	if err != nil {
		t.Fatal(err)
	}
	rows, ofShells := map[string]row{}, false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		name := strings.TrimSpace(cells[1])
		if !strings.HasPrefix(name, "`") {
			ofShells = name == "shell" || ofShells && strings.HasPrefix(name, "---")
			continue
		}
		imports, inTests, _ := strings.Cut(cells[3], "in tests")
		r := row{imports: names(imports), inTests: names(inTests), pure: strings.Contains(cells[2], "pure"), except: names(cells[2])}
		for _, pkg := range names(name) {
			if ofShells && !strings.HasPrefix(pkg, "cmd/") {
				pkg = shells + pkg
			}
			r.double = strings.Contains(cells[2], "test double") || strings.HasSuffix(pkg, "test")
			rows[pkg] = r
			// A package that the second cell names, below this one, has the same rules.
			for _, below := range names(cells[2]) {
				if strings.HasPrefix(below, pkg+"/") {
					rows[below] = r
				}
			}
		}
	}
	return rows
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
	rows := readTables(t)
	packages := readPackages(t)
	if len(packages) < len(rows)/2 {
		t.Errorf("found %d packages only", len(packages))
	}
	found := map[string]bool{}
	for _, p := range packages {
		found[p.Dir] = true
		r, ok := rows[p.Dir]
		if !ok {
			t.Errorf("%s has no row in the tables of %s", p.Dir, tableDoc)
		}
		for _, complaint := range complaints(p, r, rows) {
			t.Error(complaint)
		}
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(root, p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if r.pure {
				for _, what := range impurities(t, string(text)) {
					t.Errorf("%s is pure: %s %s", p.Dir, file, what)
				}
			}
		}
	}
	for pkg := range rows {
		if !found[pkg] {
			t.Errorf("%s has a row in the tables of %s and does not exist", pkg, tableDoc)
		}
	}
}

// complaints lists the imports of a package that its row does not allow.
func complaints(p build.Package, r row, rows map[string]row) (out []string) {
	short := func(pkg string) string { return strings.TrimPrefix(pkg, shells) }
	for _, imported := range p.Imports {
		if ours := inModule(imported); ours != "" && !slices.Contains(r.imports, short(ours)) {
			out = append(out, p.Dir+" must not import "+ours)
		}
		below := func(pkg string) bool { return imported == pkg || strings.HasPrefix(imported, pkg+"/") }
		if r.pure && slices.ContainsFunc(impure, below) && !slices.Contains(exempt, imported) && !slices.Contains(r.except, imported) {
			out = append(out, p.Dir+" is pure and must not import "+imported)
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		ours := inModule(imported)
		allowed := slices.Concat(r.imports, r.inTests, embedded, []string{"", short(p.Dir)})
		if !rows[ours].double && !slices.Contains(allowed, short(ours)) {
			out = append(out, "tests of "+p.Dir+" must not import "+ours)
		}
	}
	return out
}

// impurities lists what a file has and a file of a pure package must not have.
func impurities(t *testing.T, text string) (out []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		what := ""
		switch n := n.(type) {
		case *ast.GoStmt:
			what = "starts a goroutine"
		case *ast.ChanType:
			what = "has a channel"
		case *ast.ImportSpec:
			if n.Path.Value == `"time"` && n.Name != nil {
				what = "renames time"
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
				what = "uses time." + n.Sel.Name
			}
		}
		if what != "" {
			out = append(out, fmt.Sprintf("%s in line %d", what, set.Position(n.Pos()).Line))
		}
		return true
	})
	return out
}

// The tables are read as people read them: a change of their form must not leave
// the check without rules.
func TestTablesAreUnderstood(t *testing.T) {
	rows := readTables(t)
	for _, pkg := range []string{"hca", "hca/roce", "hca/soft", "ud", "neigh", "link", "cmd/ipoibd", shells + "iface", "scripts/e2e"} {
		if _, ok := rows[pkg]; !ok {
			t.Errorf("no row for %s", pkg)
		}
	}
	for _, pkg := range []string{"hca", "hca/roce", "hca/softqp", "ud/ipoib", "ud/port", "ud/vnet", "neigh", "qprecovery", "qprecovery/freeze"} {
		if !rows[pkg].pure {
			t.Errorf("%s is not pure", pkg)
		}
	}
	if rows["ud"].pure || !slices.Equal(rows["hca/roce"].imports, []string{"hca"}) {
		t.Errorf("ud: %+v, hca/roce: %+v", rows["ud"], rows["hca/roce"])
	}
	if !rows["hca/soft/memfabric"].double || !rows["link/linktest/nstest"].double || !rows[shells+"process/processtest"].double || rows["link"].double {
		t.Error("test doubles are not recognised")
	}
	if r := rows[shells+"iface"]; !slices.Contains(r.imports, "device") || slices.Contains(r.imports, "process") || !slices.Contains(r.inTests, "process") {
		t.Errorf("iface: %+v", r)
	}
}

func TestComplaints(t *testing.T) {
	rows := readTables(t)
	const iface, power, ours = shells + "iface", shells + "power", module + "/" + shells
	for _, c := range []struct {
		pkg  build.Package
		want []string
	}{
		{
			build.Package{Dir: "link", Imports: []string{"os", "ipoibd/hca"}},
			[]string{"link must not import hca"},
		},
		{
			build.Package{Dir: "neigh", Imports: []string{"sync", "sync/atomic", "log/slog", "net", "net/netip", "os/exec", "golang.org/x/sys/unix", "ipoibd/hca"}},
			[]string{
				"neigh is pure and must not import sync", "neigh is pure and must not import log/slog", "neigh is pure and must not import net",
				"neigh is pure and must not import os/exec", "neigh is pure and must not import golang.org/x/sys/unix",
			},
		},
		{build.Package{Dir: "hca", Imports: []string{"context", "syscall", "os"}}, []string{"hca is pure and must not import os"}},
		{
			build.Package{Dir: iface, Imports: []string{"ipoibd/ud", "ipoibd/link/linktest", ours + "device", ours + "daemon"}},
			[]string{iface + " must not import link/linktest", iface + " must not import " + shells + "daemon"},
		},
		{
			build.Package{Dir: iface, Imports: []string{ours + "process"}, TestImports: []string{ours + "process"}},
			[]string{iface + " must not import " + shells + "process"},
		},
		{build.Package{Dir: power, Imports: []string{"ipoibd/hca"}}, []string{power + " must not import hca"}},
		{
			build.Package{Dir: "ud", TestImports: []string{"os", "ipoibd/hca/soft/memfabric", "ipoibd/neigh"}},
			[]string{"tests of ud must not import neigh"},
		},
		{build.Package{Dir: "hca", XTestImports: []string{"ipoibd/hca", "ipoibd/hca/hcatest"}}, nil},
		{build.Package{Dir: power, XTestImports: []string{ours + "power"}}, nil},
	} {
		if got := complaints(c.pkg, rows[c.pkg.Dir], rows); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.pkg.Dir, got, c.want)
		}
	}
}

func TestImpurities(t *testing.T) {
	const text = `package p

import (
	clock "time"
	"time"
)

var c chan int

func f(now time.Time) time.Duration {
	go f(now)
	return time.Since(now)
}
`
	want := []string{"renames time in line 4", "has a channel in line 8", "starts a goroutine in line 11", "uses time.Since in line 12"}
	if got := impurities(t, text); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
