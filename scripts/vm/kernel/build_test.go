package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
)

// The headers of a kernel are three packages; that with the programs may have a version of its own.
func TestHeaderDependencies(t *testing.T) {
	for show, want := range map[string][]string{
		`Package: linux-headers-6.1.0-56-amd64
Version: 6.1.192-2
Depends: linux-headers-6.1.0-56-common (= 6.1.192-2), linux-kbuild-6.1 (>= 6.1.192-2), linux-compiler-gcc-12-x86
`: {"linux-headers-6.1.0-56-common=6.1.192-2", "linux-kbuild-6.1"},
		`Package: linux-headers-6.12.117+deb12-amd64
Depends: linux-base (>= 4.12~), linux-headers-6.12.117+deb12-common (= 6.12.117-1~deb12u1), linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1), linux-kbuild-6.12.117+deb12, gcc-12
`: {"linux-headers-6.12.117+deb12-common=6.12.117-1~deb12u1", "linux-kbuild-6.12.117+deb12"},
		"Package: linux-headers-amd64\n": nil,
	} {
		if got := headerDependencies(show); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The Makefile of unpacked headers refers to the folder in the cache, not to that of installed ones.
func TestRelocate(t *testing.T) {
	tree := t.TempDir()
	file := filepath.Join(tree, "usr/src/linux-headers-6.1.0-1-amd64/Makefile")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("include /usr/src/linux-headers-6.1.0-1-common/Makefile\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := relocate(tree, "linux-headers-6.1.0-1-amd64", "/cache/headers"); err != nil {
		t.Fatal(err)
	}
	const want = "include /cache/headers/usr/src/linux-headers-6.1.0-1-common/Makefile\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("Makefile %q, %v, want %q", got, err, want)
	}
}

// A compiled module is found by its source: each change of a name or a text is another source.
func TestSourceHash(t *testing.T) {
	source := func(name, text string) fstest.MapFS {
		return fstest.MapFS{"Kbuild": {Data: []byte("obj-m := a.o\n")}, name: {Data: []byte(text)}}
	}
	seen := map[string]string{}
	for _, c := range [][2]string{{"a.c", "int x;"}, {"a.c", "int y;"}, {"b.c", "int x;"}, {"a.c", ""}} {
		hash, err := sourceHash(source(c[0], c[1]))
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[hash]; ok {
			t.Errorf("%q has the hash of %q", c, other)
		}
		seen[hash] = c[0] + c[1]
	}
	first, _ := sourceHash(source("a.c", "int x;"))
	again, _ := sourceHash(source("a.c", "int x;"))
	if first != again {
		t.Errorf("hashes %s and %s of the same source", first, again)
	}
}
