package link

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// A directory that another user owns, can write to, or has replaced by a symbolic link
// is not used: no file is created in it, and no PID is read from it.
func TestDirectoryOfAnotherUserIsNotUsed(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const index, nobody = 7, 65534
	mkdir := func(dir string) error { return os.MkdirAll(dir, 0o755) }
	for _, c := range []struct {
		name    string
		prepare func() error
		pid     int
	}{
		{"our own", func() error { return mkdir(notesDir) }, os.Getpid()},
		{"another user's", func() error { return errors.Join(mkdir(notesDir), os.Chown(runDir, nobody, nobody)) }, 0},
		{"another user's inside", func() error { return errors.Join(mkdir(notesDir), os.Chown(notesDir, nobody, nobody)) }, 0},
		{"writable", func() error { return errors.Join(mkdir(notesDir), os.Chmod(runDir, 0o777)) }, 0},
		{"writable inside", func() error { return errors.Join(mkdir(notesDir), os.Chmod(notesDir, 0o777)) }, 0},
		{"symbolic link", func() error { return errors.Join(mkdir("/run/elsewhere/holders"), os.Symlink("elsewhere", runDir)) }, 0},
		{"symbolic link inside", func() error {
			return errors.Join(mkdir("/run/elsewhere"), mkdir(runDir), os.Symlink("../elsewhere", notesDir))
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
			defer func() { must(t, unix.Unmount("/run", 0)) }()
			if err := c.prepare(); errors.Is(err, unix.EINVAL) {
				t.Logf("this user namespace has no user %d", nobody)
				return
			} else if err != nil {
				t.Fatal(err)
			}
			f := leaveNote(index)
			if (f != nil) != (c.pid != 0) {
				t.Errorf("created a file: %t, want %t", f != nil, c.pid != 0)
			}
			if f == nil { // another user creates one
				path, err := notePath(index)
				must(t, err)
				must(t, os.WriteFile(path, []byte("1"), 0o600))
				f, err = os.Open(path)
				must(t, err)
				must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
			}
			defer f.Close()
			if pid := holder(index); pid != c.pid {
				t.Errorf("the holder is process %d, want %d", pid, c.pid)
			}
		})
	}
}

// The file of a process that was killed is removed by the next process that writes one. The
// file of a process that runs stays.
func TestFilesOfKilledProcessesAreRemoved(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	killed, running := leaveNote(7), leaveNote(8)
	must(t, killed.Close()) // as the kernel does; only the path is left
	defer leaveNote(9).Close()
	if _, err := os.Stat(killed.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the killed process: %v, want none", err)
	}
	if pid := holder(8); pid != os.Getpid() {
		t.Errorf("the holder is process %d, want %d", pid, os.Getpid())
	}
	removeNote(running)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
