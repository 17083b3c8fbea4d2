package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is the interval between attempts to take a lock that another run holds.
const lockPoll = 100 * time.Millisecond

// cacheDir creates the folder for kernels: $XDG_CACHE_HOME/ipoibd/vm.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache: %w", err)
	}
	dir := filepath.Join(base, "ipoibd", "vm")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	return dir, nil
}

// lock creates a file and takes a lock on it, which ends with the process at the
// latest. It blocks until it holds the lock or ctx is done.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock the cache: %w", ctx.Err())
		case <-time.After(lockPoll):
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the cache: %w", os.NewSyscallError("flock", err))
	}
	return func() { _ = f.Close() }, nil
}

// modified returns when a folder was created, or the zero time if it does not exist.
func modified(dir string) time.Time {
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// workDir creates the folder in which the holder of the lock works, and removes
// what a killed process has left in it.
func workDir(root string) (string, error) {
	dir := filepath.Join(root, "making")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("clean the cache: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("create a folder: %w", err)
	}
	return dir, nil
}

// publish gives a finished folder or file its name, and then removes older ones.
func publish(work, name string, older []string) error {
	if err := os.Rename(work, name); err != nil {
		return fmt.Errorf("put %s into the cache: %w", filepath.Base(name), err)
	}
	for _, old := range older {
		if err := os.RemoveAll(old); err != nil {
			return fmt.Errorf("clean the cache: %w", err)
		}
	}
	return nil
}
