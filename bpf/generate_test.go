package bpf_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The generated files are those that the C files yield, with Debian's clang and the pinned
// bpf2go: `make generate` rewrites them.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	// A copy of what go generate reads, with the same paths from the root.
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "bpf"), 0o755))
	tools, err := filepath.Abs("../tools")
	must(t, err)
	must(t, os.Symlink(tools, filepath.Join(root, "tools")))
	for _, pattern := range []string{"../go.mod", "../go.sum", "*.c", "*.h", "generate.go"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(root, "bpf", file), data, 0o600))
		}
	}
	cmd := exec.Command("go", "generate", "./bpf")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go generate (this requires clang, llvm and libbpf-dev; `make deps` installs them): %v\n%s", err, out)
	}
	compared := 0
	for _, dir := range []string{".", filepath.Join(root, "bpf")} {
		files, err := filepath.Glob(filepath.Join(dir, "*_bpfel.*"))
		must(t, err)
		for _, file := range files {
			name := filepath.Base(file)
			committed, err := os.ReadFile(name)
			must(t, err)
			generated, err := os.ReadFile(filepath.Join(root, "bpf", name))
			if err != nil || !bytes.Equal(committed, generated) {
				t.Errorf("%s is not what its C file yields (%v); run `make generate`", name, err)
			}
			compared++
		}
	}
	sources, err := filepath.Glob("*.c")
	must(t, err)
	if want := 2 * 2 * len(sources); compared != want { // a Go file and an object in each directory
		t.Errorf("compared %d files, want %d", compared, want)
	}
}
