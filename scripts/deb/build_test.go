package deb

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

const tree = "../.."

// copyTree copies the files that git knows or would add, and returns the copy.
func copyTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `git ls-files -z --cached --others --exclude-standard --deduplicate | xargs -0 ls -d 2>/dev/null | cpio --quiet -pdm "$1"`, "sh", dir)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the tree: %v\n%s", err, out)
	}
	return dir
}

// build builds the package of a tree.
func build(t *testing.T, tree string, env ...string) (deb string) {
	t.Helper()
	start := time.Now()
	deb, err := buildIn(t.TempDir(), tree, env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("built in %v", time.Since(start).Round(time.Second))
	return deb
}

// buildIn builds the package of a tree in a directory, if it is not there.
func buildIn(out, tree string, env ...string) (string, error) {
	if files, _ := filepath.Glob(out + "/*.deb"); len(files) == 1 {
		return files[0], nil
	}
	cmd := exec.Command(filepath.Join(tree, "scripts/deb/build"), out)
	cmd.Env = append(append(os.Environ(), "COMMIT=test"), env...)
	if !*soak {
		cmd.Env = append(cmd.Env, "DPKG_DEB_COMPRESSOR_LEVEL=1") // dpkg-deb(1): most of the time would be for compression
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the package: %w\n%s", err, text)
	}
	files, err := filepath.Glob(out + "/*.deb")
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("%q, %w: want one package", files, err)
	}
	return files[0], nil
}

// firstEnv has the path of the package of this tree, which is built once.
const firstEnv = "TEST_IPOIBD_DEB_FIRST"

func TestMain(m *testing.M) {
	if os.Getenv(firstEnv) != "" { // a child
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "deb-")
	if err != nil {
		panic(err)
	}
	os.Setenv(firstEnv, dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var once = sync.OnceValues(func() (string, error) { return buildIn(os.Getenv(firstEnv), tree) })

// first returns the package of this tree.
func first(t *testing.T) string {
	t.Helper()
	deb, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return deb
}

// unpack unpacks a package on this machine, and returns where.
func unpack(t *testing.T, deb string) string {
	t.Helper()
	dir := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb, dir)
	return dir
}

// soak selects the long forms of the tests that have one.
var soak = flag.Bool("soak", false, "run the long forms")

// The same source gives the same bytes in another directory, at another time and in another
// language; in the long form also without the objects that earlier builds have left in Go's cache, and compressed as for users.
func TestReproducible(t *testing.T) {
	deb := first(t)
	// The copy is in a path of another length.
	env := []string{"TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "TMPDIR=" + t.TempDir()}
	if *soak {
		env = append(env, "GOCACHE="+t.TempDir())
	}
	second := build(t, copyTree(t), env...)
	a, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", filepath.Base(deb), len(a))
	if !bytes.Equal(a, b) {
		x, y := unpack(t, deb), unpack(t, second)
		out, _ := exec.Command("diff", "--recursive", "--brief", x, y).CombinedOutput()
		t.Errorf("the packages differ:\n%s", out)
	}
}

// lintian and the readers of man pages have no complaint, and the completion of bash works.
func TestContents(t *testing.T) {
	deb := first(t)
	if out := output(t, "lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", deb); out != "" {
		t.Errorf("lintian:\n%s", out)
	}
	root := unpack(t, deb)
	pages, err := filepath.Glob(root + "/usr/share/man/man*/*.gz")
	if err != nil || len(pages) < 2 {
		t.Fatalf("man pages: %q, %v", pages, err)
	}
	for _, page := range pages {
		if out, err := exec.Command("mandoc", "-T", "lint", "-W", "warning", page).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
	}
	version := output(t, root+"/usr/bin/ipoibd", "version")
	if control := output(t, "dpkg-deb", "--field", deb, "Version"); !strings.HasPrefix(version, "ipoibd "+strings.TrimSpace(control)+" (test, ") {
		t.Errorf("the package has version %s, its program %s", control, version)
	}
	const complete = `. "$1/usr/share/bash-completion/completions/ipoibd"
		_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}; }
		__ltrim_colon_completions() { :; }
		PATH=$1/usr/bin:$PATH COMP_WORDS=(ipoibd stat) COMP_CWORD=1 COMP_LINE="ipoibd stat" COMP_POINT=11 COMP_TYPE=9
		_init_completion() { _get_comp_words_by_ref; }
		__start_ipoibd && echo "${COMPREPLY[@]}"`
	if out := output(t, "bash", "-c", complete, "bash", root); strings.TrimSpace(out) != "status" {
		t.Errorf("ipoibd stat is completed to %q", out)
	}
}

// upgrade builds a package of the next version.
func upgrade(t *testing.T) string {
	t.Helper()
	dir := copyTree(t)
	for file, edit := range map[string]func(string) string{
		"cmd/ipoibd/version.go": func(s string) string {
			return regexp.MustCompile(`const release = ".*"`).ReplaceAllString(s, `const release = "99.0.0"`)
		},
		"docs/CHANGELOG.md": func(s string) string {
			return strings.Replace(s, "\n## ", "\n## 99.0.0 - 2030-01-01\n\n- An upgrade.\n\n## ", 1)
		},
	} {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(edit(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	deb := build(t, dir)
	if version := output(t, "dpkg-deb", "--field", deb, "Version"); strings.TrimSpace(version) != "99.0.0" {
		t.Fatalf("the next version is %s", version)
	}
	return deb
}
