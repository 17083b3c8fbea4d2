package link

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// notesDir has a file for each interface that a process holds, with the PID of that
// process. Other parts of the daemon use runDir too.
const (
	runDir   = "/run/ipoibd"
	notesDir = runDir + "/holders"
)

// A file may be locked or removed for a moment by processes that read it or look for old ones.
const (
	noteTries = 100
	notePause = time.Millisecond
)

// trusted reports whether runDir and notesDir are directories, not symbolic links, in
// which only root and this user can have created or replaced files. Otherwise another
// user could make this process write to another file.
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
	for range noteTries {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && there(f) {
			if f.Truncate(0) == nil {
				if _, err = f.WriteString(strconv.Itoa(os.Getpid())); err == nil {
					return f
				}
			}
			f.Close()
			return nil
		}
		f.Close()
		time.Sleep(notePause)
	}
	return nil
}

// there reports whether a file still has its name.
func there(f *os.File) bool {
	opened, err := f.Stat()
	named, errNamed := os.Lstat(f.Name())
	return err == nil && errNamed == nil && os.SameFile(opened, named)
}

// removeOld removes the files of processes that were killed, which are no longer locked. It may
// take a file for one that another process has just created, and not locked yet. That process retries.
func removeOld() {
	files, _ := os.ReadDir(notesDir)
	for _, file := range files {
		path := filepath.Join(notesDir, file.Name())
		if f, err := openOld(path); err == nil {
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && there(f) {
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

// holder returns the PID of the process that holds an interface, or 0 if it is not known. The
// directory may belong to another user, to whom root has given it. So holder believes a file only if
// its owner runs the process that it names.
func holder(index int) int {
	path, err := notePath(index)
	if err != nil {
		return 0
	}
	f, err := openOld(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0 // the process that wrote it has exited
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return 0
	}
	var text [20]byte
	n, _ := f.Read(text[:])
	pid, _ := strconv.Atoi(string(text[:n]))
	if pid < 1 || userOf(pid) != strconv.Itoa(int(st.Uid)) {
		return 0
	}
	return pid
}

// userOf returns the effective user ID of a process, or "" if it is not known (proc_pid_status(5)).
func userOf(pid int) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, found := strings.Cut(string(status), "\nUid:")
	ids := strings.Fields(rest)
	if err != nil || !found || len(ids) < 2 {
		return ""
	}
	return ids[1]
}
