package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cpio unpacks the archive to the same files.
func TestImageUnpacks(t *testing.T) {
	var archive bytes.Buffer
	b := New(&archive)
	b.File("/etc/deep/file", 0o640, []byte("text"))
	b.File("/empty", 0o755, nil)
	b.Symlink("/bin/link", "target")
	b.Dir("/etc/deep")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	dir := unpack(t, archive.Bytes())
	if got, err := os.ReadFile(filepath.Join(dir, "etc/deep/file")); err != nil || string(got) != "text" {
		t.Errorf("file: %q, %v, want text", got, err)
	}
	for name, want := range map[string]os.FileMode{
		"etc/deep/file": 0o640, "empty": 0o755, "etc": os.ModeDir | 0o755, "bin": os.ModeSymlink | 0o777,
	} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
	if got, err := os.Readlink(filepath.Join(dir, "usr/bin/link")); err != nil || got != "target" {
		t.Errorf("link: %q, %v, want target", got, err)
	}
}

// unpack unpacks an archive with cpio.
func unpack(t *testing.T, archive []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "cpio", "-i", "-d", "--quiet")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio (Debian package cpio): %v\n%s", err, out)
	}
	return dir
}

// An image with a program has its libraries, each once, and the program runs with
// these alone.
func TestProgram(t *testing.T) {
	var archive bytes.Buffer
	b := New(&archive)
	for _, name := range []string{"ip", "ping"} {
		from, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		b.Program("/usr/bin/"+name, from)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	dir := unpack(t, archive.Bytes())
	loader, err := filepath.Glob(filepath.Join(dir, "lib*", "ld-linux*"))
	if err != nil || len(loader) != 1 {
		t.Fatalf("loaders: %q, %v, want one", loader, err)
	}
	libs, err := filepath.Glob(filepath.Join(dir, "lib", "*-linux-gnu"))
	if err != nil || len(libs) != 1 {
		t.Fatalf("folders of libraries: %q, %v", libs, err)
	}
	out, err := exec.CommandContext(t.Context(), loader[0], "--inhibit-cache", "--library-path", libs[0], "--list", filepath.Join(dir, "usr/bin/ip")).CombinedOutput()
	if err != nil {
		t.Fatalf("run the program by its loader: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "lib"); ok && !strings.Contains(path, dir) {
			t.Errorf("a library from outside the image: %s", line)
		}
	}
}

func TestErrorsStay(t *testing.T) {
	for name, misuse := range map[string]func(*Builder){
		"twice":      func(b *Builder) { b.File("/a", 0o644, nil); b.File("/a", 0o644, nil) },
		"no file":    func(b *Builder) { b.Copy("/a", "/nonexistent") },
		"no program": func(b *Builder) { b.Program("/a", "image_test.go") },
	} {
		b := New(new(bytes.Buffer))
		misuse(b)
		b.File("/later", 0o644, nil)
		if err := b.Close(); err == nil {
			t.Errorf("%s: no error, want one", name)
		}
	}
}

func TestInside(t *testing.T) {
	for path, want := range map[string]string{
		"/": ".", "/etc/x": "etc/x", "/bin/x": "usr/bin/x", "/lib64": "usr/lib64", "/library/x": "library/x", "/../etc//x/": "etc/x",
	} {
		if got := inside(path); got != want {
			t.Errorf("inside(%s) = %s, want %s", path, got, want)
		}
	}
}
