package guest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// kitPrefix is the prefix of the names of folders with kits in the directory for
// temporary files.
const kitPrefix = "ipoibd-vm-"

// newKitDir creates a directory for a kit, and removes the kits of killed runs: a
// live run holds a lock on its directory. The lock is taken before the
// directory gets its name, and ends with release or with the process.
func newKitDir() (dir string, release func(), err error) {
	sweepKits()
	made, err := os.MkdirTemp("", "new-"+kitPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("create a folder for the guests: %w", err)
	}
	held, free := tryLock(made)
	if !free {
		return "", nil, fmt.Errorf("lock %s", made)
	}
	dir = filepath.Join(os.TempDir(), filepath.Base(made)[len("new-"):])
	if err := os.Rename(made, dir); err != nil {
		return "", nil, fmt.Errorf("create a folder for the guests: %w", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = held.Close()
	}, nil
}

// sweepKits removes the directories that are not locked. It ignores errors,
// because other users' directories cannot be removed.
func sweepKits() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), kitPrefix+"*"))
	for _, dir := range dirs {
		if held, free := tryLock(dir); free {
			_ = os.RemoveAll(dir)
			_ = held.Close()
		}
	}
}

// tryLock takes the lock on a directory if it is free. Closing the file
// releases the lock.
func tryLock(dir string) (held *os.File, free bool) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil, false
	}
	return f, true
}
