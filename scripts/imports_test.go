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
	tableDoc = "imports.md"
	shells   = "cmd/ipoibd/internal/"
)

// embedded is the software HCA. Any test may use it, on the in-memory fabric, where it
// needs a device.
var embedded = []string{"hca/soft", "hca/soft/udp"}

// computing lists the only external packages that a pure package may import: those of the
// standard library, and x/sys/cpu for the features of the CPU. They only compute; sync/atomic
// publishes a snapshot as a whole.
var computing = []string{
	"bytes", "cmp", "container/heap", "container/list", "crypto/sha256", "encoding/binary", "encoding/hex", "encoding/json", "errors", "fmt",
	"golang.org/x/sys/cpu", "hash/crc32", "iter", "maps", "math", "math/bits", "net/netip", "slices", "strconv", "strings", "sync/atomic", "time", "unicode",
}

// impureNames are the names of those packages that a pure package must not use: they read
// the clock, wait, or print.
var impureNames = map[string][]string{
	"time": {"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"},
	"fmt":  {"Print", "Printf", "Println"},
}

// row is the rule of one package, from the tables.
type row struct {
	imports, inTests []string // of ours, by their names in the tables
	double           bool     // a test double: only test files may import it
	pure             bool
	except           []string // external packages that this pure one may also import
	order            int      // the number of the row, from the top
}

var code = regexp.MustCompile("`([^`]+)`")

// readTables reads the rows of the document's tables of imports,
// | `package` | what | imports of ours |. In the table of shells, whose first column is
// headed "shell", names without a path are those of shells.
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
		pkg := names(name)[0]
		if ofShells && !strings.HasPrefix(pkg, "cmd/") {
			pkg = shells + pkg
		}
		imports, inTests, _ := strings.Cut(cells[3], "in tests")
		rows[pkg] = row{
			imports: names(imports), inTests: names(inTests), order: len(rows),
			double: strings.Contains(cells[2], "test double") || strings.HasSuffix(pkg, "test"),
			pure:   strings.Contains(cells[2], ": pure"), except: names(cells[2]),
		}
	}
	return rows
}

// names returns the names in a cell.
func names(cell string) (out []string) {
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// inModule returns an import path within the module, or "" for a package of others.
func inModule(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, module+"/"); ok {
		return rest
	}
	return ""
}

// short returns a package's name in the tables.
func short(pkg string) string { return strings.TrimPrefix(pkg, shells) }

// readPackages reads all packages of the tree, with the files of all platforms and build
// tags. It runs no go list, so that go test knows which files a cached result depends on.
// Dir is the path within the module.
func readPackages(t *testing.T) (out []build.Package) {
	t.Helper()
	everything := build.Default
	everything.UseAllFiles = true
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != root && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		p, err := everything.ImportDir(dir, 0)
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
		t.Errorf("found only %d packages", len(packages))
	}
	found := map[string]bool{}
	for _, p := range packages {
		found[p.Dir] = true
		r, ok := rows[p.Dir]
		if !ok {
			t.Errorf("%s has no row in the tables of %s", p.Dir, tableDoc)
		}
		for _, complaint := range slices.Concat(complaints(p, r, rows), unused(p, r)) {
			t.Error(complaint)
		}
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(root, p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range impurities(t, string(text)) {
				if r.pure {
					t.Errorf("%s is pure, but %s %s", p.Dir, file, what)
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

// Packages form levels: each imports only packages above it in the tables. So there are
// no circles, and no shell imports one that is built on it.
func TestImportsPointUp(t *testing.T) {
	rows := readTables(t)
	for pkg, r := range rows {
		for _, name := range r.imports {
			imported, ok := rows[shells+name]
			if !ok {
				imported, ok = rows[name]
			}
			if !ok || imported.order >= r.order {
				t.Errorf("%s may import %s, which has no row above it in the tables of %s", pkg, name, tableDoc)
			}
		}
	}
}

// complaints lists the imports of a package that its row does not allow.
func complaints(p build.Package, r row, rows map[string]row) (out []string) {
	for _, imported := range p.Imports {
		ours := inModule(imported)
		if ours != "" && !slices.Contains(r.imports, short(ours)) {
			out = append(out, p.Dir+" must not import "+ours)
		}
		if r.pure && ours == "" && !slices.Contains(computing, imported) && !slices.Contains(r.except, imported) {
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

// unused lists the imports that a row allows although the package does not have them.
func unused(p build.Package, r row) (out []string) {
	list := func(whose string, allowed, imports []string) {
		for _, name := range allowed {
			if !slices.ContainsFunc(imports, func(imported string) bool { return short(inModule(imported)) == name }) {
				out = append(out, whose+p.Dir+" may import "+name+", but need not")
			}
		}
	}
	list("", r.imports, p.Imports)
	list("tests of ", r.inTests, slices.Concat(p.TestImports, p.XTestImports))
	return out
}

// impurities lists the goroutines, channels and uses of impureNames in a file.
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
			if name := strings.Trim(n.Path.Value, `"`); n.Name != nil && impureNames[name] != nil {
				what = "renames " + name
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureNames[x.Name], n.Sel.Name) {
				what = "uses " + x.Name + "." + n.Sel.Name
			}
		}
		if what != "" {
			out = append(out, fmt.Sprintf("%s in line %d", what, set.Position(n.Pos()).Line))
		}
		return true
	})
	return out
}

// The test reads the tables by their form. If the form changes, rows must not lose their
// rules unnoticed.
func TestTablesAreUnderstood(t *testing.T) {
	rows := readTables(t)
	if r := rows["hca/roce"]; !r.pure || r.double || !slices.Equal(r.imports, []string{"hca"}) {
		t.Errorf("hca/roce: %+v", r)
	}
	if r := rows["hca"]; !r.pure || !slices.Equal(r.except, []string{"context", "syscall"}) {
		t.Errorf("hca: %+v", r)
	}
	if r := rows["ud"]; r.pure {
		t.Errorf("ud: %+v", r)
	}
	for _, pkg := range []string{"hca/soft/memfabric", "link/linktest/nstest", shells + "process/processtest"} {
		if !rows[pkg].double {
			t.Errorf("%s is not a test double: %+v", pkg, rows[pkg])
		}
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
			build.Package{Dir: "neigh", Imports: []string{"sync", "sync/atomic", "net", "net/netip", "golang.org/x/time/rate", "C", "ipoibd/hca"}},
			[]string{
				"neigh is pure and must not import sync", "neigh is pure and must not import net",
				"neigh is pure and must not import golang.org/x/time/rate", "neigh is pure and must not import C",
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

func TestUnused(t *testing.T) {
	r := row{imports: []string{"hca", "device"}, inTests: []string{"link", "ud"}}
	p := build.Package{Dir: "x", Imports: []string{"ipoibd/" + shells + "device", "ipoibd/ud"}, XTestImports: []string{"ipoibd/link"}}
	if got, want := unused(p, r), []string{"x may import hca, but need not", "tests of x may import ud, but need not"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestImpurities(t *testing.T) {
	const text = `package p

import (
	clock "time"
	. "fmt"
	"fmt"
	"time"
)

var c chan int

func f(now time.Time) time.Duration {
	go f(now)
	fmt.Println(now)
	return time.Since(now)
}
`
	want := []string{
		"renames time in line 4", "renames fmt in line 5", "has a channel in line 10", "starts a goroutine in line 13",
		"uses fmt.Println in line 14", "uses time.Since in line 15",
	}
	if got := impurities(t, text); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
