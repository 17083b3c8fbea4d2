package resetlock

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
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
			if err := f.open(dir, "k"); !errors.Is(err, kernel.ErrNotPrivate) {
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

// H6: a reset that was cut short and left its device absent is completed only when no other
// process holds the device, only once, and only for the configured device.
func TestR21CompleteWaitsForHolders(t *testing.T) {
	checkLeaks(t)
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	r := reset.Record{Phase: reset.PhaseResetting, Begun: true, Number: 3, Device: reset.Device{Parent: "eth0", Name: "rxe0", Means: "link"}}
	holder := &files{}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := holder.open(dir, r.Device.Key()); err != nil {
		t.Fatal(err)
	}
	defer holder.close()
	holder.Write(r)
	holder.Share()
	var completed []string
	complete := func(name string) error {
		return Complete(t.Context(), dir, 50*time.Millisecond, func(d reset.Device) bool { return d.Name == name },
			func(d reset.Device) error { completed = append(completed, d.Name); return nil }, log)
	}
	if err := complete("rxe1"); err != nil || len(completed) > 0 {
		t.Errorf("another device: %v, completed %q", err, completed)
	}
	if err := complete("rxe0"); err == nil || len(completed) > 0 {
		t.Errorf("while the device is held: %v, completed %q", err, completed)
	}
	holder.Drop()
	for range 2 {
		if err := complete("rxe0"); err != nil || !slices.Equal(completed, []string{"rxe0"}) {
			t.Errorf("after it was released: %v, completed %q", err, completed)
		}
	}
	if got := holder.Read(); got.Begun || got.Phase != reset.PhaseIdle || got.Outcome != reset.OutcomeDone {
		t.Errorf("the record is %+v", got)
	}
}

// A reset that was not permitted is left to another process, unless it has removed the device.
func TestR21PermissionIsNoExcuseAfterTheDeviceIsGone(t *testing.T) {
	denied := fmt.Errorf("add: %w", fs.ErrPermission)
	if ev := Done(denied); ev.Outcome != reset.OutcomeDenied || ev.Unfinished {
		t.Errorf("%v: %+v", denied, ev)
	}
	gone := fmt.Errorf("%w; %w", denied, ErrUnfinished)
	if ev := Done(gone); ev.Outcome != reset.OutcomeFailed || !ev.Unfinished || ev.Detail != gone.Error() {
		t.Errorf("%v: %+v", gone, ev)
	}
}
