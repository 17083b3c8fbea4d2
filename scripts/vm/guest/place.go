package guest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// kitPrefix begins the names of folders with kits, among the temporary files.
const kitPrefix = "ipoibd-vm-"

// newKitDir makes a folder for a kit, and takes away those of runs that were
// killed: a living run holds a lock on its folder. The lock is there before the
// name, and goes with release, or with the process.
func newKitDir() (dir string, release func(), err error) {
	sweepKits()
	made, err := os.MkdirTemp("", "new-"+kitPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the guests: %w", err)
	}
	held, free := tryLock(made)
	if !free {
		return "", nil, fmt.Errorf("lock %s", made)
	}
	dir = filepath.Join(os.TempDir(), filepath.Base(made)[len("new-"):])
	if err := os.Rename(made, dir); err != nil {
		return "", nil, fmt.Errorf("make a folder for the guests: %w", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = held.Close()
	}, nil
}

// sweepKits removes the folders that nobody holds. Others' are not ours to
// remove, nor to complain of.
func sweepKits() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), kitPrefix+"*"))
	for _, dir := range dirs {
		if held, free := tryLock(dir); free {
			_ = os.RemoveAll(dir)
			_ = held.Close()
		}
	}
}

// tryLock takes the lock on a folder, unless somebody has it; closing the file
// gives it up.
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
