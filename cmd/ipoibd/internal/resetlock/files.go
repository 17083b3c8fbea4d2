package resetlock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// ErrUnsafe says that others could have written the directory or a file in it.
var ErrUnsafe = errors.New("not private: it must be a directory or file of root or the daemon's user, that no one else may write, and no symbolic link")

var errRemoved = errors.New("the file was removed; restart all daemons that share the device")

// files are the two files of a device, and what else a reset needs to have open.
type files struct {
	use, intent *os.File
	changes     *os.File // inotify of intent
	procLocks   *os.File // nil: there is no /proc
	buf         [reset.RecordSize + 1]byte
}

// MakeDir makes a directory for the files, unless it exists.
func MakeDir(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// openFiles makes the directory and the files of a device, where they do not exist.
func openFiles(dir, key string) (_ *files, err error) {
	if err := MakeDir(dir); err != nil {
		return nil, err
	}
	dirFD, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = ErrUnsafe
	}
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	defer unix.Close(dirFD)
	if err := private(dirFD, unix.S_IFDIR, 0o022); err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	f := &files{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for suffix, file := range map[string]**os.File{".use": &f.use, ".intent": &f.intent} {
		fd, err := unix.Openat(dirFD, key+suffix, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.ELOOP) {
			err = ErrUnsafe
		}
		name := filepath.Join(dir, key+suffix)
		if err == nil {
			*file = os.NewFile(uintptr(fd), name)
			err = private(fd, unix.S_IFREG, 0o077)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	_ = unix.Fallocate(int(f.intent.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reset.RecordSize) // a reset needs no space then
	if f.changes, err = watch(f.intent.Name()); err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.intent.Name(), err)
	}
	f.procLocks, _ = os.Open("/proc/locks")
	return f, nil
}

// CutShort returns the device of a reset in dir that was cut short, or is under way, and
// that a process is configured for. It is for devices that are gone, so that their
// name in the directory is not known.
func CutShort(dir string, configured func(reset.Device) bool) (reset.Device, bool) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.intent"))
	for _, name := range names {
		key := strings.TrimSuffix(filepath.Base(name), ".intent")
		f, err := openFiles(dir, key)
		if err != nil {
			continue
		}
		r := f.read()
		f.close()
		if r.Begun && r.Device.Key() == key && configured(r.Device) {
			return r.Device, true
		}
	}
	return reset.Device{}, false
}

// private refuses what others could have written.
func private(fd int, kind, denied uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != kind || st.Mode&denied != 0 || st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
		return ErrUnsafe
	}
	return nil
}

func watch(path string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

func (f *files) close() {
	for _, file := range []*os.File{f.use, f.intent, f.changes, f.procLocks} {
		if file != nil {
			file.Close()
		}
	}
}

// OnDisk reports whether a reset may have to wait for the disk below a directory (R17).
func OnDisk(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return err == nil && st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC
}

// flock tries for a lock, or releases it. It never blocks.
func flock(f *os.File, how int) (held bool, err error) {
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, fmt.Errorf("flock %s: %w", f.Name(), err)
		}
	}
}

// read returns the intent. One that cannot be read is reset.PhaseBad.
func (f *files) read() reset.Record {
	n, _ := f.intent.ReadAt(f.buf[:], 0) // its error is EOF
	r, err := reset.Decode(f.buf[:n])
	if err != nil {
		r = reset.Record{Phase: reset.PhaseBad}
	}
	return r
}

func (f *files) write(r reset.Record) error {
	b := r.Encode()
	if _, err := f.intent.WriteAt(b, 0); err != nil {
		return err
	}
	return f.intent.Truncate(int64(len(b))) // what others have appended
}

// removed says whether other processes can still meet this one.
func (f *files) removed() error {
	for _, file := range []*os.File{f.use, f.intent} {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err == nil && st.Nlink == 0 {
			return fmt.Errorf("%s: %w", file.Name(), errRemoved)
		}
	}
	return nil
}

// holders are the processes that have a lock on a file, other than this one, as far
// as they are of this PID namespace or of one below it (/proc/locks, proc(5)).
func (f *files) holders(file *os.File) (pids []int) {
	var st unix.Stat_t
	if f.procLocks == nil || unix.Fstat(int(file.Fd()), &st) != nil {
		return nil
	}
	text := make([]byte, 1<<16)
	n, _ := f.procLocks.ReadAt(text, 0)
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(text[:n])) { // 1: FLOCK ADVISORY READ 7 00:1a:5 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != inode {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processName names a process for people.
func processName(pid int) string {
	name := "a process"
	if comm, err := fs.ReadFile(os.DirFS("/proc"), strconv.Itoa(pid)+"/comm"); err == nil {
		name = strings.TrimSpace(string(comm))
	}
	return fmt.Sprintf("%s (pid %d)", name, pid)
}
