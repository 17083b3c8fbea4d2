package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Only a file or a directory that no other user may have written is opened.
func TestOpenPrivate(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"private": 0o600, "readable": 0o644, "writable": 0o602} {
		must(os.WriteFile(at(name), nil, 0o600))
		must(os.Chmod(at(name), mode))
		must(os.Mkdir(at(name+".d"), 0o700))
		must(os.Chmod(at(name+".d"), mode|0o100))
	}
	must(os.Symlink("private", at("link")))
	must(os.Symlink("private.d", at("link.d")))
	must(unix.Mkfifo(at("fifo"), 0o600))
	for _, c := range []struct {
		name  string
		flags int
		want  error
	}{
		{"private", unix.O_RDWR, nil},
		{"created", unix.O_RDWR | unix.O_CREAT, nil},
		{"missing", unix.O_RDONLY, fs.ErrNotExist},
		{"readable", unix.O_RDONLY, ErrNotPrivate},
		{"writable", unix.O_RDONLY, ErrNotPrivate},
		{"link", unix.O_RDONLY, ErrNotPrivate},
		{"fifo", unix.O_RDONLY, ErrNotPrivate},
		{"private.d", unix.O_RDONLY, ErrNotPrivate},
		{"private.d", unix.O_PATH | unix.O_DIRECTORY, nil},
		{"readable.d", unix.O_PATH | unix.O_DIRECTORY, nil},
		{"writable.d", unix.O_PATH | unix.O_DIRECTORY, ErrNotPrivate},
		{"link.d", unix.O_PATH | unix.O_DIRECTORY, ErrNotPrivate},
		{"private", unix.O_PATH | unix.O_DIRECTORY, ErrNotPrivate},
	} {
		f, err := OpenPrivate(unix.AT_FDCWD, at(c.name), c.flags)
		if !errors.Is(err, c.want) {
			t.Errorf("%s, flags %#x: %v, want %v", c.name, c.flags, err, c.want)
		}
		f.Close() // it may be nil
	}
	if os.Geteuid() == 0 {
		must(os.Chown(at("private"), 65534, 65534))
		if f, err := OpenPrivate(unix.AT_FDCWD, at("private"), unix.O_RDONLY); !errors.Is(err, ErrNotPrivate) {
			t.Errorf("of another user: %v, %v", f, err)
		}
	}
}

// The old file stays until all of the new one is written, and if that fails. Nothing else is left.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := func() string {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(b)
	}
	failed := errors.New("failed")
	for _, c := range []struct {
		text      string
		err       error
		was, want string
	}{{"one", nil, "", "one"}, {"two", failed, "one", "one"}, {"three", nil, "one", "three"}} {
		f, err := Replace(path, func(f *os.File) error {
			_, err := f.WriteString(c.text)
			if got := content(); got != c.was {
				t.Errorf("%s: %q meanwhile, want %q", c.text, got, c.was)
			}
			return errors.Join(err, c.err)
		})
		if !errors.Is(err, c.err) || content() != c.want {
			t.Errorf("%s: %v, %q, want %v, %q", c.text, err, content(), c.err, c.want)
		}
		f.Close() // it may be nil
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	if err != nil || !slices.Equal(files, []string{path}) || len(hidden) > 0 {
		t.Errorf("%q, %q, %v", files, hidden, err)
	}
}
