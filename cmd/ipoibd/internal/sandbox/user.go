package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// User is the user as which a daemon runs that root starts.
type User struct {
	UID, GID int
	Groups   []int // supplementary
}

// CanLeaveRoot reports whether this process has the capabilities to become another user, and to give that
// one the directories of the daemon. A container of root often lacks them.
func CanLeaveRoot() bool {
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	needed := []capability.Cap{capability.CAP_SETUID, capability.CAP_SETGID, capability.CAP_CHOWN}
	lacks := func(c capability.Cap) bool { return !caps.Get(capability.EFFECTIVE, c) }
	return err == nil && !slices.ContainsFunc(needed, lacks)
}

// LookupUser returns the user with a name. Errors: [osuser.UnknownUserError] among others.
func LookupUser(name string) (*User, error) {
	found, err := osuser.Lookup(name)
	if errors.Is(err, fs.ErrNotExist) { // an image without /etc/passwd
		err = osuser.UnknownUserError(name)
	}
	if err != nil {
		return nil, err
	}
	ids, err := found.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of user %s: %w", name, err)
	}
	u := User{Groups: []int{}}
	for _, id := range ids {
		n, err := strconv.Atoi(id)
		if err != nil {
			return nil, err
		}
		u.Groups = append(u.Groups, n)
	}
	if u.UID, err = strconv.Atoi(found.Uid); err == nil {
		u.GID, err = strconv.Atoi(found.Gid)
	}
	return &u, err
}

// SocketUser returns the owner of a control socket. It returns an error if another user could have created the socket,
// and so chosen the user that the daemon runs as: the directory of the socket must be root's or that user's,
// those above it root's, and others may not replace anything in them.
func SocketUser(socket string) (uid int, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(socket)) // a link above it may be systemd's, of DynamicUser=
	if err != nil {
		return 0, err
	}
	info, err := os.Lstat(filepath.Join(dir, filepath.Base(socket)))
	if err != nil {
		return 0, err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return 0, fmt.Errorf("%s is not a socket", socket)
	}
	user := info.Sys().(*syscall.Stat_t).Uid
	for last, below := dir, user; ; dir = filepath.Dir(dir) {
		above, err := os.Lstat(dir)
		if err != nil {
			return 0, err
		}
		owner := above.Sys().(*syscall.Stat_t).Uid
		sticky := above.Mode()&fs.ModeSticky != 0 && below == 0 && dir != last // as /tmp: what is root's stays there
		if owner != 0 && (owner != user || dir != last) || above.Mode().Perm()&0o022 != 0 && !sticky {
			return 0, fmt.Errorf("users other than root can change %s", dir)
		}
		if dir == "/" {
			return int(user), nil
		}
		below = owner
	}
}

// become makes this process one of the user. The calling thread keeps its capabilities.
func (u *User) become() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil { // execve ends it
		return os.NewSyscallError("prctl PR_SET_KEEPCAPS", err)
	}
	err := os.NewSyscallError("setgroups", unix.Setgroups(u.Groups))
	if err == nil {
		err = os.NewSyscallError("setresgid", unix.Setresgid(u.GID, u.GID, u.GID))
	}
	if err == nil {
		err = os.NewSyscallError("setresuid", unix.Setresuid(u.UID, u.UID, u.UID))
	}
	if err != nil {
		return err
	}
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	caps.Set(capability.EFFECTIVE, held(caps, capability.PERMITTED)...) // setresuid has cleared them
	return caps.Apply(capability.CAPS)
}

// adopt gives the user the directories of the policy to which the daemon writes, with root's files in
// them, if they belong to root. It creates missing ones. It leaves alone an existing one whose name is
// not ipoibd's, and one in a directory that another user could have changed: root must not follow a
// link there. If a daemon of root still runs, adopt returns an error, because that daemon would lose its
// directory.
func (u *User) adopt(p Policy) error {
	for _, dir := range slices.Concat(p.Write, p.Private) {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil || !roots(filepath.Dir(dir)) {
			continue // an error shows when the directory is used
		}
		mode := fs.FileMode(0o755)
		if slices.Contains(p.Private, dir) {
			mode = 0o700
		}
		created := os.Mkdir(dir, mode) == nil
		if !roots(dir) || !created && !own(dir) {
			continue
		}
		if err := u.give(dir, slices.Contains(p.Write, dir)); err != nil {
			return err
		}
	}
	return nil
}

// give gives the user a directory and root's files in it. A container to which the directory is mounted may
// change it meanwhile: what is reached is always in the directory. With sockets, give returns an error if a program of
// root listens on a socket in it.
func (u *User) give(dir string, sockets bool) error {
	root, err := openReal(dir)
	if err != nil {
		return fmt.Errorf("open %s to give it to user %d, which the daemon runs as: %w", dir, u.UID, err)
	}
	defer root.Close()
	var paths []string // the parent comes first
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil && path == "." {
			return err
		}
		info, err := root.Lstat(path)
		switch {
		case err != nil || !owned(info): // it is another one now, or a stranger's
			if info != nil && info.IsDir() {
				return fs.SkipDir
			}
			return nil
		case info.IsDir() && !onlyRoots(info):
			return fs.SkipDir
		case info.Mode().Type()&^(fs.ModeDir|fs.ModeSocket|fs.ModeSymlink) != 0:
			return nil // a device or a pipe
		case info.Mode().Type() == fs.ModeSocket && sockets && listens(filepath.Join(dir, path)):
			return fmt.Errorf("a daemon that runs as root listens on %s; stop it first", filepath.Join(dir, path))
		}
		paths = append(paths, path)
		return nil
	})
	for _, path := range slices.Backward(paths) {
		if err != nil {
			return err
		}
		if failed := root.Lchown(path, u.UID, u.GID); failed != nil && path == "." { // others may be gone
			err = fmt.Errorf("change the owner of %s to user %d, which the daemon runs as: %w", dir, u.UID, failed)
		}
	}
	return err
}

// openReal opens a directory whose path has no links.
func openReal(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	itself, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	defer itself.Close()
	real, err := os.Readlink(descriptor(int(itself.Fd())))
	if err == nil && real != filepath.Clean(dir) {
		err = fmt.Errorf("its path leads to %s", real)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// listens reports whether a program listens on a socket with a path, even if it is too busy to answer.
func listens(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
}

// descriptor returns a path to what a descriptor of this process refers to.
func descriptor(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// roots reports whether only root could have created what is in a directory, or in one above it.
func roots(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if info, err := os.Lstat(dir); err != nil || !onlyRoots(info) {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// onlyRoots reports whether only root could have created what is in a directory.
func onlyRoots(dir fs.FileInfo) bool {
	return dir.IsDir() && owned(dir) && (dir.Mode().Perm()&0o022 == 0 || dir.Mode()&fs.ModeSticky != 0)
}

// owned reports whether a file belongs to root, and is there only once.
func owned(file fs.FileInfo) bool {
	st, ok := file.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && (file.IsDir() || st.Nlink == 1)
}
