package power

import (
	"context"
	"fmt"
	"os"
	"sync"

	"ipoibd/link/kernel"
)

// Inhibitor makes the system wait for this daemon. The zero value holds nothing. A process that
// continues the daemon gets duplicates of the descriptors, so that one of the two holds it at any time (R26).
type Inhibitor struct {
	mu    sync.Mutex
	files inhibitors
}

// Inherit returns the inhibitor of another process, with its descriptors, which it owns from then on.
func Inherit(fds []int) *Inhibitor {
	i := &Inhibitor{}
	for _, fd := range fds {
		i.files = append(i.files, os.NewFile(uintptr(fd), "inhibitor"))
	}
	return i
}

// HandOver returns duplicates of the descriptors, if any, which the caller closes, also after an error.
func (i *Inhibitor) HandOver() (fds []int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, f := range i.files {
		fd, err := kernel.Duplicate(f)
		if err != nil {
			return fds, fmt.Errorf("an inhibitor: %w", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Release lets the system sleep and shut down. Idempotent.
func (i *Inhibitor) Release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.files.Close()
	i.files = nil
}

func (i *Inhibitor) held() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.files != nil
}

func (i *Inhibitor) take(ctx context.Context) error {
	files, err := inhibit(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.files = files
	return err
}
