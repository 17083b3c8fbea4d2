package current

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// What is written is read again, by no other user, and without interfaces there is no file.
func TestMemoryOfInterfaces(t *testing.T) {
	path := memoryOf(filepath.Join(t.TempDir(), "control.sock"))
	if filepath.Base(path) != "control.interfaces.json" {
		t.Error(path)
	}
	for _, want := range [][]json.RawMessage{{json.RawMessage(`{"name":"a"}`), json.RawMessage(`{"name":"b"}`)}, {json.RawMessage(`7`)}, nil, nil} {
		must(t, replaceFile(path, want))
		if got, err := readMemory(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := replaceFile("/nonexistent/x", []json.RawMessage{json.RawMessage(`7`)}); err == nil {
		t.Error("no error without a directory")
	}
}

// A file that is damaged, or that another user may have written, is refused.
func TestMemoryIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	must(t, os.WriteFile(good, []byte(`[{"name":"a"}]`), 0o600))
	for name, prepare := range map[string]func(path string) error{
		"not JSON":   func(p string) error { return os.WriteFile(p, []byte(`[{`), 0o600) },
		"not a list": func(p string) error { return os.WriteFile(p, []byte(`{}`), 0o600) },
		"another user's": func(p string) error {
			must(t, os.WriteFile(p, []byte(`[]`), 0o600))
			return os.Chown(p, 65534, 65534)
		},
		"writable":    func(p string) error { return os.WriteFile(p, []byte(`[]`), 0o600) },
		"too large":   func(p string) error { must(t, os.WriteFile(p, nil, 0o600)); return os.Truncate(p, maxMemory+1) },
		"a directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"a link":      func(p string) error { return os.Symlink(good, p) },
		"a FIFO":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		if name == "another user's" && os.Geteuid() != 0 {
			continue // only root can give a file away
		}
		path := filepath.Join(dir, name)
		must(t, prepare(path))
		if name == "writable" {
			must(t, os.Chmod(path, 0o666))
		}
		if got, err := readMemory(path); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
