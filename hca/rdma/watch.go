package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Multicast groups of netlink.
const (
	groupUevent = 1 // of the kernel; udev's own is 2
	groupNotify = 4 // RDMA_NL_GROUP_NOTIFY of rdma_netlink.h; Linux 6.12 and later
)

// Watch returns a channel that has a value whenever a device may have come, gone
// or changed since the last receive, and one at the start. It is closed when ctx
// has ended, or the kernel cannot be heard any more. On an error nothing is told:
// [ErrUserNamespace] where the kernel sends no events.
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

// watcher reads the kernel's messages. Each source has a goroutine, which ends
// when its socket is closed.
type watcher struct {
	subsystems []string
	sources    []source
	changed    chan struct{}
}

// source is a socket, and what of its messages counts.
type source struct {
	*os.File
	counts func(msg []byte) bool
}

func newWatcher(subsystems []string) (*watcher, error) {
	w := &watcher{subsystems: subsystems, changed: make(chan struct{}, 1)}
	uevents, err := listen(unix.NETLINK_KOBJECT_UEVENT, groupUevent)
	if err != nil {
		return nil, err
	}
	w.sources = append(w.sources, source{uevents, w.countsUevent})
	notify, err := listen(unix.NETLINK_RDMA, groupNotify)
	if err == nil {
		w.sources = append(w.sources, source{notify, func([]byte) bool { return true }})
	}
	if err == nil || lacksNotify(err) {
		return w, nil
	}
	return nil, errors.Join(err, uevents.Close())
}

// lacksNotify: the kernel has no RDMA yet, or no notifications; uevents do.
func lacksNotify(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// listen joins a group of a netlink protocol, with the sender's credentials.
func listen(protocol, group int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err := join(fd, group); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func join(fd, group int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
}

// run reads until ctx ends or a source fails: half of what there is to hear is not
// enough.
func (w *watcher) run(ctx context.Context) {
	defer close(w.changed)
	defer context.AfterFunc(ctx, w.close)()
	var readers sync.WaitGroup
	for _, s := range w.sources {
		readers.Go(func() {
			defer w.close()
			w.read(s)
		})
	}
	readers.Wait()
}

// close ends all readers. Harmless when repeated.
func (w *watcher) close() {
	for _, s := range w.sources {
		_ = s.Close() // it may be closed
	}
}

// read hints at each message that counts, and at those that were lost.
func (w *watcher) read(s source) {
	buf := make([]byte, maxUevent)
	for {
		msg, err := receive(s.File, buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			w.hint()
		case err != nil:
			return
		case msg != nil && s.counts(msg):
			w.hint()
		}
	}
}

func (w *watcher) countsUevent(msg []byte) bool {
	ev, ok := parseUevent(msg)
	return ok && ev.of(w.subsystems)
}

func (w *watcher) hint() {
	select {
	case w.changed <- struct{}{}:
	default: // it has not looked yet
	}
}

// receive blocks for a message; nil for one that is not of the kernel, or is
// longer than buf.
func receive(f *os.File, buf []byte) (msg []byte, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn, flags int
	var from unix.Sockaddr
	rerr := conn.Read(func(fd uintptr) bool {
		n, oobn, flags, from, err = unix.Recvmsg(int(fd), buf, oob, 0)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	if err := errors.Join(rerr, err); err != nil {
		return nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || !fromKernel(from, oob[:oobn]) {
		return nil, nil
	}
	return buf[:n], nil
}

// fromKernel reports whether the sender's port and process are the kernel's: 0
// both, which no process can have (netlink_recvmsg, net/netlink/af_netlink.c).
func fromKernel(from unix.Sockaddr, oob []byte) bool {
	addr, ok := from.(*unix.SockaddrNetlink)
	if !ok || addr.Pid != 0 {
		return false
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return false
	}
	cred, err := syscall.ParseUnixCredentials(&messages[0])
	return err == nil && cred.Pid == 0
}
