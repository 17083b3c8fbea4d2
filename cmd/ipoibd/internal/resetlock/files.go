package resetlock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/qprecovery/reset"
)

var errRemoved = errors.New("the lock files of the device were removed")

// files is the [reset.Kernel] of a device. Where no other process uses the device there
// are no files: every lock is free, and the record is one that could not be written.
type files struct {
	conf        Config
	mu          sync.Mutex // guards use and former, which Sharers reads
	use, intent *os.File
	former      *os.File // use, before it was removed; nil: it was not
	changes     *os.File // inotify of intent; nil: it is not watched
	procLocks   *os.File // nil: there is no /proc
	buf         [reset.RecordSize + 1]byte
	unwritten   *unwritten // nil: the last record was written
	lost        error      // why files that were removed cannot be replaced; nil: they were not, or they can
	err         error      // of the last system call
	logged      string     // the error that was logged last
}

// unwritten is a record that could not be written, such as to a file system that has become
// read-only. It counts instead of what the file holds until another process changes that:
// otherwise the leader of a reset would find its own intent again, and reset without end.
type unwritten struct{ record, inFile reset.Record }

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

// open opens the files of a device, and makes the directory and them where they do not
// exist. It opens either both or none.
func (f *files) open(dir, key string) error {
	if err := MakeDir(dir); err != nil {
		return err
	}
	dirFile, err := kernel.OpenPrivate(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dirFile.Close()
	var opened [2]*os.File
	for i, suffix := range []string{".use", ".intent"} {
		if opened[i], err = kernel.OpenPrivate(int(dirFile.Fd()), key+suffix, unix.O_RDWR|unix.O_CREAT); err != nil {
			opened[0].Close()
			return fmt.Errorf("directory %s: %w", dir, err)
		}
	}
	f.use, f.intent = opened[0], opened[1]
	if f.procLocks == nil {
		f.procLocks, _ = os.Open("/proc/locks")
	}
	_ = unix.Fallocate(int(f.intent.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reset.RecordSize) // a reset needs no space then
	return nil
}

// removed reports whether a file was removed, so that it does not reach processes that
// start later.
func (f *files) removed() bool {
	for _, file := range []*os.File{f.use, f.intent} {
		var st unix.Stat_t
		if unix.Fstat(int(file.Fd()), &st) == nil && st.Nlink == 0 {
			return true
		}
	}
	return false
}

// renew replaces files that were removed, unless another process leads a reset with them;
// doc.go says why that is safe. shares says that this process holds the shared lock.
func (f *files) renew(shares bool) {
	if !f.removed() || !f.flock(f.intent, unix.LOCK_SH) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	record, use, intent, former := f.Read(), f.use, f.intent, f.former
	if err := f.open(f.conf.Dir, f.conf.Device.Key()); err != nil {
		f.Disclaim()
		f.lost = fmt.Errorf("%w and cannot be created again: %w", errRemoved, err)
		f.note(f.lost)
		return
	}
	f.lost, f.unwritten = nil, nil
	if sameFile(use, f.use) { // only the intent was removed: two locks on one file would exclude each other
		f.use.Close()
		f.use = use
	} else {
		former.Close()
		f.former = use
		if shares {
			f.flock(f.use, unix.LOCK_SH)
		}
	}
	if f.flock(f.intent, unix.LOCK_EX) {
		if f.Read() == (reset.Record{}) && record != (reset.Record{}) {
			f.Write(record) // it may be of a reset that was cut short
		}
		f.Disclaim()
	}
	if f.changes != nil {
		f.watch()
	}
	f.flock(f.former, unix.LOCK_UN)
	intent.Close()
	f.conf.Log.Warn("the lock files of the device were removed; using new ones", "directory", f.conf.Dir)
}

func sameFile(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// watch reports the changes of intent as reads of changes. It fails where other processes of
// the user have used up what the system allows him.
func (f *files) watch() {
	var err error
	if f.changes == nil {
		var fd int
		if fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
			f.changes = os.NewFile(uintptr(fd), "inotify")
		}
	}
	if err == nil { // a removal changes the number of links
		intent := filepath.Join(f.conf.Dir, f.intent.Name())
		_, err = unix.InotifyAddWatch(int(f.changes.Fd()), intent, unix.IN_MODIFY|unix.IN_ATTRIB)
	}
	if err != nil {
		f.conf.Log.Warn("cannot watch for resets by other processes; polling once a second", "err", err)
	}
}

func (f *files) close() {
	for _, file := range []*os.File{f.use, f.intent, f.former, f.changes, f.procLocks} {
		file.Close() // it may be nil
	}
}

// OnDisk reports whether a reset may have to wait for the disk below a directory (R17).
func OnDisk(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return err == nil && st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC
}

// cutShort opens the files of a device whose reset was cut short, and that this process
// is configured for. It returns nil if there is no such device. The device is gone, so its
// key is not known otherwise.
func cutShort(dir string, configured func(reset.Device) bool, log *slog.Logger) (*files, reset.Device) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.intent"))
	for _, name := range names {
		f, key := &files{conf: Config{Log: log}}, strings.TrimSuffix(filepath.Base(name), ".intent")
		if f.open(dir, key) != nil {
			continue
		}
		if r := f.Read(); r.Begun && r.Device.Key() == key && configured(r.Device) {
			return f, r.Device
		}
		f.close()
	}
	return nil, reset.Device{}
}

// exclusive tries for both locks at once, and holds neither of them if it does not get both.
func (f *files) exclusive() bool {
	if !f.flock(f.intent, unix.LOCK_EX) {
		return false
	}
	ours := f.flock(f.use, unix.LOCK_EX)
	if !ours {
		f.Disclaim()
	}
	return ours
}

// readTries is how often a record is read that may have been written at the same moment.
const readTries = 3

func (f *files) Read() reset.Record {
	r := f.content()
	if f.unwritten != nil && f.unwritten.inFile == r {
		return f.unwritten.record
	}
	f.unwritten = nil
	return r
}

// content returns the record in the file.
func (f *files) content() (r reset.Record) {
	for range readTries {
		n, _ := f.intent.ReadAt(f.buf[:], 0) // its error is EOF, or that there is no file
		var err error
		if r, err = reset.Decode(f.buf[:n]); err == nil {
			break
		}
	}
	return r
}

func (f *files) Write(r reset.Record) {
	_, err := f.intent.WriteAt(r.Encode(), 0)
	f.unwritten = nil
	if err != nil {
		f.unwritten = &unwritten{record: r, inFile: f.content()}
	}
	if f.intent != nil {
		f.note(errors.Join(err, f.intent.Truncate(reset.RecordSize))) // cuts what others have appended
	}
}

func (f *files) Claim() (ours bool, err error) {
	ours = f.flock(f.intent, unix.LOCK_EX)
	if ours && f.removed() {
		f.Disclaim()
		return false, f.lost
	}
	return ours, nil
}

func (f *files) Disclaim() { f.flock(f.intent, unix.LOCK_UN) }

func (f *files) Share() bool {
	f.flock(f.former, unix.LOCK_UN)
	return f.flock(f.use, unix.LOCK_SH)
}

// Exclude locks the former file too: processes that have not replaced it yet hold that.
func (f *files) Exclude() (ours bool, err error) {
	if f.removed() {
		return false, errRemoved
	}
	return f.flock(f.former, unix.LOCK_EX) && f.flock(f.use, unix.LOCK_EX), nil
}

func (f *files) Drop() {
	f.flock(f.former, unix.LOCK_UN)
	f.flock(f.use, unix.LOCK_UN)
}

// flock tries for a lock, or releases it. It never blocks, so no signal interrupts it. The
// lock of a file that is nil is free.
func (f *files) flock(file *os.File, how int) bool {
	if file == nil {
		return true
	}
	err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		f.note(nil)
	} else {
		f.note(fmt.Errorf("flock %s: %w", file.Name(), err))
	}
	return err == nil
}

// note keeps the error of a system call for the status, and logs one that is new.
func (f *files) note(err error) {
	if err == nil && (f.unwritten != nil || f.lost != nil) {
		return // its error still holds
	}
	if err != nil && err.Error() != f.logged {
		f.logged = err.Error()
		f.conf.Log.Error("cannot coordinate resets of the device with other processes", "err", err)
	}
	f.err = err
}

func (f *files) Holders() string {
	names := f.sharers()
	if f.conf.Holders != nil {
		names = append(names, f.conf.Holders()...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return "an unknown process, perhaps of another PID namespace"
	}
	return strings.Join(names, ", ")
}

func (f *files) Foreign() bool { return f.conf.Holders != nil && len(f.conf.Holders()) > 0 }

// sharers names the other processes that have a lock on use.
func (f *files) sharers() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range f.lockers(f.use, f.former) {
		name := "a process"
		if comm, err := fs.ReadFile(os.DirFS("/proc"), strconv.Itoa(pid)+"/comm"); err == nil {
			name = strings.TrimSpace(string(comm))
		}
		names = append(names, fmt.Sprintf("%s (pid %d)", name, pid))
	}
	return names
}

// maxLocks bounds how many bytes of /proc/locks are read: some 20,000 locks. Any user can
// hold many, and the latest come first.
const maxLocks = 1 << 20

// lockers returns the other processes that have a lock on one of the files, as far as they are of
// this PID namespace or of one below it (/proc/locks, proc(5)).
func (f *files) lockers(files ...*os.File) (pids []int) {
	var inodes []string
	for _, file := range files {
		var st unix.Stat_t
		if unix.Fstat(int(file.Fd()), &st) == nil {
			inodes = append(inodes, fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
		}
	}
	if f.procLocks == nil || len(inodes) == 0 {
		return nil
	}
	for lines := bufio.NewScanner(io.NewSectionReader(f.procLocks, 0, maxLocks)); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // such as 1: FLOCK ADVISORY READ 7 00:1a:5 0 EOF
		if len(fields) < 8 || fields[1] != "FLOCK" || !slices.Contains(inodes, fields[5]) {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids) // a lock appears twice if others are taken while the kernel lists them
	return slices.Compact(pids)
}
