package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotPrivate reports a file that another user may have written.
var ErrNotPrivate = errors.New("must be a directory or file owned by root or the daemon's user, " +
	"not writable by others, and not a symbolic link")

// OpenPrivate opens a file that only root and this user can have written: a regular file that others cannot even
// read, since a reader could lock it, or with O_DIRECTORY a directory that others cannot write. With O_CREAT it
// creates the file. name is relative to the directory dirFD, or to the working directory with AT_FDCWD.
// It does not wait for the writer of a FIFO. Errors: ErrNotPrivate, and the errors of openat(2).
func OpenPrivate(dirFD int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dirFD, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = ErrNotPrivate
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	kind, denied := uint32(unix.S_IFREG), uint32(0o077)
	if flags&unix.O_DIRECTORY != 0 {
		kind, denied = unix.S_IFDIR, 0o022
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	othersFile := st.Uid != 0 && st.Uid != uint32(os.Geteuid())
	if err == nil && (st.Mode&unix.S_IFMT != kind || st.Mode&denied != 0 || othersFile) {
		err = ErrNotPrivate
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Replace puts a new file, which only this user can read and write, in the place of the one at a path, if there is
// one. Other processes see the old file or all that fill has written. If fill fails, the old file stays. The caller
// closes the new one.
func Replace(path string, fill func(*os.File) error) (*os.File, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	if err = fill(file); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, nil
}
