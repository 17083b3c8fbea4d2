package coordinator

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotSocket says that something else lies where the socket should be.
var ErrNotSocket = errors.New("exists and is not a socket")

var (
	errNobody   = errors.New("nobody hosts")
	errHosted   = errors.New("another process is becoming the host, or is the host and its socket was removed")
	errLockGone = errors.New("the lock file was removed; made it anew")
)

// meeting is the place where those who share a device meet: a socket, and beside
// it a lock file that its host holds. Nil where nobody shares the device.
type meeting struct {
	path string
	lock *os.File
}

// openMeeting makes the folder and the lock file of path.
func openMeeting(path string) (*meeting, error) {
	if path == "" {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := checkSocket(path); err != nil {
		return nil, err
	}
	lock, err := openLock(path)
	return &meeting{path, lock}, err
}

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// checkSocket refuses what is neither a socket nor nothing.
func checkSocket(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s: %w", path, ErrNotSocket)
	}
	return nil
}

// connect connects to the host; [errNobody] where there is none.
func (m *meeting) connect() (*net.UnixConn, error) {
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: m.path, Net: "unix"})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, errNobody
	}
	return nc, err
}

// host makes this process the host; [errHosted] where another is. What a dead
// host has left at the path is removed: nobody binds there but who has the lock.
func (m *meeting) host() (*net.UnixListener, error) {
	if err := m.seize(); err != nil {
		return nil, err
	}
	l, err := listen(m.path)
	if err != nil {
		m.yield()
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	return l, nil
}

// seize takes the lock. A lock file that is not the one at the path any more is
// of no use: it is opened anew.
func (m *meeting) seize() error {
	err := unix.Flock(int(m.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHosted
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", m.lock.Name(), err)
	}
	if m.current() {
		return nil
	}
	return m.reopen()
}

func (m *meeting) yield() { _ = unix.Flock(int(m.lock.Fd()), unix.LOCK_UN) }

// current reports whether the lock file is still the one at the path.
func (m *meeting) current() bool {
	mine, err := m.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(m.lock.Name())
	return err == nil && os.SameFile(mine, there)
}

// reopen replaces the lock file; the caller tries again later.
func (m *meeting) reopen() error {
	lock, err := openLock(m.path)
	if err != nil {
		return err
	}
	m.lock.Close()
	m.lock = lock
	return errLockGone
}

// backlog is how many connections wait to be accepted.
const backlog = maxConns

// listen makes the socket with mode 0600, which the kernel takes over from the
// socket to the file that it makes for it: there is no moment at which others
// could connect.
func listen(path string) (*net.UnixListener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := bind(fd, path); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f) // it has a descriptor of its own
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

func bind(fd int, path string) error {
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, backlog))
}

func removeStale(path string) error {
	if err := checkSocket(path); err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leave removes the socket, then closes it, so nobody who comes late is left
// waiting in it.
func (m *meeting) leave(l *net.UnixListener) {
	_ = os.Remove(m.path) // somebody may have done so
	l.Close()
}

func (m *meeting) close() {
	if m != nil {
		m.lock.Close() // gives the lock up
	}
}
