package link

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// notesDir has a file for each interface that a process holds, with the PID of that
// process. Other parts of the daemon use runDir too.
const (
	runDir   = "/run/ipoibd"
	notesDir = runDir + "/holders"
)

// trusted reports whether runDir and notesDir are directories, not symbolic links, in
// which only root and this user can have created or replaced files. Otherwise another
// user could write a wrong PID there, or make this process write to another file.
func trusted() bool {
	for _, dir := range []string{runDir, notesDir} {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
			return false
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
			return false
		}
	}
	return true
}

// notePath returns the path of an interface's file. It contains the calling thread's network
// namespace and the index there, because the name of the interface may change.
func notePath(index int) (string, error) {
	ns, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	inode := ns.Sys().(*syscall.Stat_t).Ino
	return filepath.Join(notesDir, fmt.Sprintf("netns-%d-if-%d.pid", inode, index)), nil
}

// leaveNote writes a file with this process's PID and locks it. Other processes report the
// PID in their error. The file does not protect the interface: the queues do. If the file
// cannot be written, leaveNote returns nil, and the others report no PID.
func leaveNote(index int) *os.File {
	path, err := notePath(index)
	if err != nil {
		return nil
	}
	_ = os.MkdirAll(runDir, 0o755)
	_ = os.Mkdir(notesDir, 0o700)
	if !trusted() {
		return nil
	}
	removeOld()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(os.Getpid()))
	}
	if err != nil {
		f.Close()
		return nil
	}
	return f
}

// removeOld removes the files of processes that were killed, which are no longer locked. A
// file that another process creates at this very moment is not locked yet. If that is removed,
// the PID of its process is unknown.
func removeOld() {
	files, _ := os.ReadDir(notesDir)
	for _, file := range files {
		path := filepath.Join(notesDir, file.Name())
		if f, err := openOld(path); err == nil {
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				_ = os.Remove(path)
			}
			f.Close()
		}
	}
}

func openOld(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// removeNote removes the file that leaveNote wrote. f may be nil.
func removeNote(f *os.File) {
	if f != nil {
		_ = os.Remove(f.Name())
		f.Close()
	}
}

// holder returns the PID of the process that holds an interface, or 0 if it is not
// known.
func holder(index int) int {
	path, err := notePath(index)
	if err != nil || !trusted() {
		return 0
	}
	f, err := openOld(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0 // the process that wrote it has ended
	}
	var text [20]byte
	n, _ := f.Read(text[:])
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid
}
