package image

import (
	"bufio"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// merged are the folders that are symbolic links into /usr.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// Builder writes an image. After the first error all calls do nothing; Close
// returns that error.
type Builder struct {
	w    *bufio.Writer
	have map[string]bool // paths without the leading slash
	err  error
}

// New begins an image on w, which the caller closes.
func New(w io.Writer) *Builder {
	b := &Builder{w: bufio.NewWriter(w), have: map[string]bool{}}
	for _, name := range merged {
		b.Dir("/usr/" + name)
		b.entry(name, kindSymlink|0o777, []byte("usr/"+name))
	}
	return b
}

// Close ends the image.
func (b *Builder) Close() error {
	b.entry(trailer, 0, nil)
	if b.err == nil {
		b.err = b.w.Flush()
	}
	return b.err
}

// Has reports whether the image has a file at a path.
func (b *Builder) Has(path string) bool { return b.have[inside(path)] }

// Dir creates a folder and its parents, unless they exist.
func (b *Builder) Dir(dir string) { b.dir(inside(dir)) }

func (b *Builder) dir(name string) {
	if name == "." || b.have[name] {
		return
	}
	b.dir(path.Dir(name))
	b.entry(name, kindDir|0o755, nil)
}

// File adds a file with the permissions of mode. It is an error if the path exists.
func (b *Builder) File(path string, mode os.FileMode, data []byte) {
	b.add(path, kindFile|uint32(mode.Perm()), data)
}

// Symlink adds a symbolic link.
func (b *Builder) Symlink(path, target string) { b.add(path, kindSymlink|0o777, []byte(target)) }

func (b *Builder) add(name string, mode uint32, data []byte) {
	name = inside(name)
	if b.have[name] && b.err == nil {
		b.err = fmt.Errorf("image: %s exists already", name)
	}
	b.dir(path.Dir(name))
	b.entry(name, mode, data)
}

func (b *Builder) entry(name string, mode uint32, data []byte) {
	b.have[name] = true
	if b.err == nil {
		b.err = writeEntry(b.w, name, mode, data)
	}
}

// Copy adds a file of this machine at another path.
func (b *Builder) Copy(path, from string) {
	info, err := os.Stat(from)
	b.fail(err)
	data, err := os.ReadFile(from)
	b.fail(err)
	if b.err == nil {
		b.File(path, info.Mode(), data)
	}
}

// Program adds a program or shared object of this machine at another path, and the
// shared libraries that it needs at their paths on this machine.
func (b *Builder) Program(path, from string) {
	b.Copy(path, from)
	libs, err := libraries(from)
	b.fail(err)
	for _, lib := range libs {
		if !b.Has(lib) {
			b.Copy(lib, lib)
		}
	}
}

func (b *Builder) fail(err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("image: %w", err)
	}
}

// inside returns the path of a file in the archive.
func inside(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	top, _, _ := strings.Cut(name, "/")
	for _, m := range merged {
		if top == m {
			return "usr/" + name
		}
	}
	if name == "" {
		return "."
	}
	return name
}

// library matches a path in what ldd prints: "libc.so.6 => /lib/libc.so.6 (0x7f...)"
// or "/lib64/ld-linux-x86-64.so.2 (0x7f...)".
var library = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x`)

// libraries lists the libraries of a program, recursively; a static program has
// none.
func libraries(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	if needed, err := f.ImportedLibraries(); err != nil || len(needed) == 0 {
		return nil, err
	}
	out, err := exec.Command("ldd", file).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w\n%s", file, err, out)
	}
	if strings.Contains(string(out), "not found") {
		return nil, fmt.Errorf("%s needs libraries that this machine lacks:\n%s", file, out)
	}
	var paths []string
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		paths = append(paths, filepath.Clean(m[1]))
	}
	return paths, nil
}
