package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// Multicast groups of netlink.
const (
	groupUevent = 1 // the kernel's uevents; udev's own are group 2
	groupNotify = 4 // RDMA_NL_GROUP_NOTIFY of rdma_netlink.h; Linux 6.12 and later
)

// Watch returns a channel that delivers a value at the start, and whenever a device may have
// appeared, disappeared or changed since the last receive. The channel is closed when ctx
// ends or a socket fails. Errors: [ErrUserNamespace] if the kernel sends no events.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := checkEvents(); err != nil {
		return nil, fmt.Errorf("watch RDMA devices: %w", err)
	}
	w, err := newWatcher(subsystems)
	if err != nil {
		return nil, fmt.Errorf("watch RDMA devices: %w", err)
	}
	w.hint()
	go w.run(ctx)
	return w.changed, nil
}

// watcher reads the kernel's messages, which are only hints that something has changed. Each
// source has a goroutine, which ends when its socket is closed.
type watcher struct {
	subsystems []string
	sources    []source
	changed    chan struct{}
}

// source is a socket, and what counts of its messages.
type source struct {
	*kernel.Notifications
	counts func(msg []byte) bool
}

func newWatcher(subsystems []string) (*watcher, error) {
	w := &watcher{subsystems: subsystems, changed: make(chan struct{}, 1)}
	uevents, err := kernel.Subscribe(unix.NETLINK_KOBJECT_UEVENT, groupUevent)
	if err != nil {
		return nil, err
	}
	w.sources = append(w.sources, source{uevents, w.countsUevent})
	notify, err := kernel.Subscribe(unix.NETLINK_RDMA, groupNotify)
	switch {
	case err == nil:
		w.sources = append(w.sources, source{notify, func([]byte) bool { return true }})
	case errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL):
		// The kernel has no RDMA yet, or no notifications. Uevents suffice then.
	default:
		return nil, errors.Join(err, uevents.Close())
	}
	return w, nil
}

// run reads until ctx ends or a source fails. If one source fails, run closes the others,
// because the watch would be incomplete.
func (w *watcher) run(ctx context.Context) {
	defer close(w.changed)
	var readers sync.WaitGroup
	for _, s := range w.sources {
		readers.Go(func() {
			defer w.close()
			s.Follow(ctx, s.counts, w.hint)
		})
	}
	readers.Wait()
}

// close ends all readers. Idempotent.
func (w *watcher) close() {
	for _, s := range w.sources {
		_ = s.Close() // it may already be closed
	}
}

func (w *watcher) countsUevent(msg []byte) bool {
	subsystem, ok := subsystemOf(msg)
	return ok && slices.Contains(w.subsystems, subsystem)
}

func (w *watcher) hint() {
	select {
	case w.changed <- struct{}{}:
	default: // the last hint has not been received yet
	}
}
