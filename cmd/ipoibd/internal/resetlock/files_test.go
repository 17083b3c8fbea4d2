package resetlock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// A directory and files that others could have written, or that are not what they
// should be, are refused, and left as they were.
func TestR16PrivateFilesOnly(t *testing.T) {
	const foreign = 12345
	for name, prepare := range map[string]func(dir string) error{
		"directory that others may write": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) },
		"symbolic link to a directory":    func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"directory of another user":       func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, foreign, -1)) },
		"file instead of a directory":     func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"file that others may read": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/k.use", nil, 0o600), os.Chmod(dir+"/k.use", 0o640))
		},
		"file of another user": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/k.intent", nil, 0o600), os.Chown(dir+"/k.intent", foreign, -1))
		},
		"symbolic link to a file": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/target", nil, 0o600), os.Symlink("target", dir+"/k.intent"))
		},
		"pipe": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), unix.Mkfifo(dir+"/k.use", 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			dir := filepath.Join(t.TempDir(), "locks")
			err := prepare(dir)
			if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
				return // only root can give a file away
			}
			if err != nil {
				t.Fatal(err)
			}
			f := &files{}
			if err := f.open(dir, "k"); !errors.Is(err, ErrUnsafe) {
				t.Errorf("%v", err)
			}
		})
	}
}

// The files are made private whatever the umask; what others have appended to a record
// does not last.
func TestR16FilesArePrivate(t *testing.T) {
	checkLeaks(t)
	defer unix.Umask(unix.Umask(0))
	dir := filepath.Join(t.TempDir(), "a", "locks")
	f := &files{}
	if err := f.open(dir, "k"); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for name, want := range map[string]os.FileMode{filepath.Dir(dir): os.ModeDir | 0o755, dir: os.ModeDir | 0o700, dir + "/k.use": 0o600, dir + "/k.intent": 0o600} {
		if st, err := os.Stat(name); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
	if _, err := f.intent.WriteAt([]byte("garbage"), reset.RecordSize); err != nil {
		t.Fatal(err)
	}
	if r := f.Read(); r != (reset.Record{}) {
		t.Errorf("%+v", r)
	}
	want := reset.Record{Phase: reset.PhaseWanted, Number: 7}
	if f.Write(want); f.err != nil {
		t.Fatal(f.err)
	}
	if r := f.Read(); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}
