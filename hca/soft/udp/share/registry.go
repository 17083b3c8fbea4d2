package share

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// registration is the content of the file of a daemon that shares the port.
type registration struct {
	slot   int
	source uint16 // port of the sending socket
	inode  uint64 // of the receiving socket
	user   uint32 // of the receiving socket
}

func (r *registration) encode() []byte {
	return fmt.Appendf(nil, "%d %d %d\n", r.source, r.inode, r.user)
}

// parseRegistration returns false for an incomplete registration.
func parseRegistration(slot int, text []byte) (registration, bool) {
	r := registration{slot: slot}
	_, err := fmt.Sscan(string(text), &r.source, &r.inode, &r.user)
	return r, err == nil && r.source != 0 && r.inode != 0 && bytes.Equal(r.encode(), text)
}

// registry is the directory of the registrations of one group.
type registry struct{ dir *os.File }

// openRegistry opens the directory of the group of a netdev in the calling thread's network
// namespace, and creates it if it is missing.
func openRegistry(dir string, index int) (*registry, error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, fmt.Errorf("identify the network namespace: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	var opened *os.File
	for _, path := range []string{dir, filepath.Join(dir, fmt.Sprintf("%d-%d", ns.Ino, index))} {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		_ = opened.Close()
		var err error
		if opened, err = openPrivateDir(path); err != nil {
			return nil, err
		}
	}
	return &registry{opened}, nil
}

// openPrivateDir opens a directory, and refuses one that other users can enter.
func openPrivateDir(path string) (*os.File, error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		_ = dir.Close()
		return nil, fmt.Errorf("directory %s must belong to the daemon's user and have mode 0700", path)
	}
	return dir, nil
}

// path returns a short path of a file in the directory, also for the address of a UNIX socket.
func (r *registry) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", r.dir.Fd(), name)
}

// lockTries and lockPause bound the wait while another daemon joins, which takes milliseconds unless
// it waits itself for daemons that leave.
const (
	lockTries = 400
	lockPause = 10 * time.Millisecond
)

// leaveLimit bounds the wait for daemons that leave, which takes milliseconds unless they are
// starved of CPU time.
const leaveLimit = 2 * time.Second

// lock waits until no other daemon is joining. Closing the file releases the lock.
func (r *registry) lock() (*os.File, error) {
	file, err := os.OpenFile(r.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for range lockTries {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(lockPause)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("wait while another daemon joins: %w", err)
	}
	return file, nil
}

// claim returns the file of the first free slot, locked and empty. The caller has locked the
// registry.
func (r *registry) claim() (slot int, file *os.File, err error) {
	for slot := range NumSlots {
		file, err := os.OpenFile(r.path(strconv.Itoa(slot)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return 0, nil, err
		}
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err == nil {
			err = file.Truncate(0)
			if err == nil {
				return slot, file, nil
			}
		}
		_ = file.Close()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return 0, nil, err
		}
	}
	return 0, nil, fmt.Errorf("%d daemons share the port already", NumSlots)
}

// list returns the registrations of the living daemons.
func (r *registry) list() (live []registration, err error) {
	names, err := filepath.Glob(r.path("[0-9]*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		slot, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue // a socket
		}
		if reg, ok := readRegistration(slot, name); ok {
			live = append(live, reg)
		}
	}
	return live, nil
}

// withRemoved returns live, and the known registrations whose files were removed. Daemons never
// remove their files, so a missing file does not mean that its daemon has exited.
func (r *registry) withRemoved(live, known []registration) []registration {
	for _, k := range known {
		same := func(l registration) bool { return l.slot == k.slot }
		if _, err := os.Stat(r.path(strconv.Itoa(k.slot))); errors.Is(err, fs.ErrNotExist) && !slices.ContainsFunc(live, same) {
			live = append(live, k)
		}
	}
	return live
}

// readRegistration reads a registration. It returns false if its daemon has exited, or has not
// registered yet.
func readRegistration(slot int, name string) (registration, bool) {
	file, err := os.Open(name)
	if err != nil {
		return registration{}, false
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return registration{}, false
	}
	text := make([]byte, 64)
	n, _ := file.Read(text)
	return parseRegistration(slot, text[:n])
}

func (r *registry) close() error { return r.dir.Close() }
