package link

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// In a directory that another user owns, can write to, or has replaced by a symbolic link,
// no file is created.
func TestNoFileInADirectoryOfAnotherUser(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const index, nobody = 7, 65534
	mkdir := func(dir string) error { return os.MkdirAll(dir, 0o755) }
	for _, c := range []struct {
		name    string
		prepare func() error
		written bool
	}{
		{"our own", func() error { return mkdir(notesDir) }, true},
		{"another user's", func() error { return errors.Join(mkdir(notesDir), os.Chown(runDir, nobody, nobody)) }, false},
		{"another user's inside", func() error { return errors.Join(mkdir(notesDir), os.Chown(notesDir, nobody, nobody)) }, false},
		{"writable", func() error { return errors.Join(mkdir(notesDir), os.Chmod(runDir, 0o777)) }, false},
		{"writable inside", func() error { return errors.Join(mkdir(notesDir), os.Chmod(notesDir, 0o777)) }, false},
		{"symbolic link", func() error { return errors.Join(mkdir("/run/elsewhere/holders"), os.Symlink("elsewhere", runDir)) }, false},
		{"symbolic link inside", func() error {
			return errors.Join(mkdir("/run/elsewhere"), mkdir(runDir), os.Symlink("../elsewhere", notesDir))
		}, false},
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
			if (f != nil) != c.written {
				t.Errorf("created a file: %t, want %t", f != nil, c.written)
			}
			if f != nil {
				f.Close()
			}
		})
	}
}

// Root believes what another user writes about that user's own process, and nothing else: the
// directory belongs to the user as whom the daemon runs.
func TestHolderOfAnotherUser(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const index, nobody = 7, 65534
	must(t, os.MkdirAll(notesDir, 0o755))
	sleep := exec.Command("sleep", "60")
	sleep.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	if err := errors.Join(os.Chown(notesDir, nobody, nobody), sleep.Start()); errors.Is(err, unix.EINVAL) {
		t.Logf("this user namespace has no user %d", nobody)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = sleep.Process.Kill(), sleep.Wait() }()
	path, err := notePath(index)
	must(t, err)
	for _, c := range []struct {
		name  string
		pid   int
		owner int
		want  int
	}{
		{"its owner's process", sleep.Process.Pid, nobody, sleep.Process.Pid},
		{"a process of root", os.Getpid(), nobody, 0},
		{"none", 0, nobody, 0},
		{"root's, about a process of another user", sleep.Process.Pid, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.WriteFile(path, []byte(strconv.Itoa(c.pid)), 0o600))
			defer os.Remove(path)
			must(t, os.Chown(path, c.owner, c.owner))
			f, err := os.Open(path)
			must(t, err)
			defer f.Close()
			must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
			if pid := holder(index); pid != c.want {
				t.Errorf("the holder is process %d, want %d", pid, c.want)
			}
			must(t, os.Link(path, path+"2"))
			defer os.Remove(path + "2")
			if pid := holder(index); pid != 0 {
				t.Errorf("a file with two names: the holder is process %d, want 0", pid)
			}
		})
	}
}

// Processes that start at the same time remove each other's files only if these are old.
func TestFilesOfStartingProcessesStay(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for range 300 {
		var notes [8]*os.File
		var all sync.WaitGroup
		for i := range notes {
			all.Go(func() { notes[i] = leaveNote(i + 1) })
		}
		all.Wait()
		for i, f := range notes {
			if pid := holder(i + 1); pid != os.Getpid() {
				t.Fatalf("the holder of interface %d is process %d, want %d", i+1, pid, os.Getpid())
			}
			removeNote(f)
		}
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
