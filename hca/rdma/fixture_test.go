package rdma

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// harmless reports whether a link cannot form a loop, which fstest.MapFS would follow
// forever: a link from a class to a device, as in sysfs.
func harmless(name, target string) bool {
	inside, device := strings.CutPrefix(target, "../../devices/")
	class := strings.HasPrefix(name, "class/") && strings.Count(name, "/") == 2
	return class && device && fs.ValidPath(inside)
}

// load returns the tree that a fixture describes in lines of "FILE = TEXT" and
// "LINK -> TARGET"; other lines are comments.
func load(text string) fstest.MapFS {
	tree := fstest.MapFS{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, target, isLink := strings.Cut(strings.TrimSpace(line), " -> ")
		if isLink {
			if fs.ValidPath(name) && harmless(name, target) {
				tree[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
			}
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); fs.ValidPath(name) && name != "." {
			tree[name] = &fstest.MapFile{Data: []byte(strings.TrimSpace(value) + "\n"), Mode: 0o444}
		}
	}
	return tree
}

func fixture(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
