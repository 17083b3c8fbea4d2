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
	return err == nil && !slices.ContainsFunc([]capability.Cap{capability.CAP_SETUID, capability.CAP_SETGID, capability.CAP_CHOWN},
		func(c capability.Cap) bool { return !caps.Get(capability.EFFECTIVE, c) })
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
		var paths []string // the parent comes first
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && !roots(path):
				return fs.SkipDir
			case !owned(path):
				return nil
			}
			if entry.Type() == fs.ModeSocket {
				if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
					c.Close()
					return fmt.Errorf("a daemon that runs as root answers on %s; stop it first", path)
				}
			}
			paths = append(paths, path)
			return nil
		})
		if err != nil {
			return err
		}
		for _, path := range slices.Backward(paths) {
			if err := os.Lchown(path, u.UID, u.GID); err != nil {
				return fmt.Errorf("change the owner of %s to user %d, which the daemon runs as: %w", dir, u.UID, err)
			}
		}
	}
	return nil
}

// roots reports whether only root could have created what is in a directory, or in one above it.
func roots(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !owned(dir) || info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// owned reports whether a file belongs to root, and is there only once.
func owned(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Uid == 0 && (st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Nlink == 1)
}
