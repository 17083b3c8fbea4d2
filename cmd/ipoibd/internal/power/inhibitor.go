package power

import (
	"context"
	"os"
	"sync"
	"syscall"

	"ipoibd/link/kernel/capsule"
)

// Inhibitor makes the system wait for this daemon. The zero value holds nothing. A process that
// takes over from the daemon gets duplicates of the descriptors, so that one of the two holds it at any time (R26).
type Inhibitor struct {
	mu    sync.Mutex
	files inhibitors
}

// Import holds what another process has exported.
func (i *Inhibitor) Import(r *capsule.Reader) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, fd := range r.Descriptors("inhibitors") {
		i.files = append(i.files, os.NewFile(uintptr(fd), "inhibitor"))
	}
}

// Export puts the descriptors into a capsule, as the part "inhibitors".
func (i *Inhibitor) Export(w *capsule.Writer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var files []syscall.Conn
	for _, f := range i.files {
		files = append(files, f)
	}
	w.Put("inhibitors", nil, files...)
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
