package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// The watcher reads the kernel's messages without delay up to readingBurst times, which is
// more than the notifications of a device that is added and configured. If messages keep
// coming, readings are readingPause apart, so there are at most 20 hints a second.
const (
	readingBurst = 20
	readingPause = 50 * time.Millisecond
)

// drainMost bounds the messages of one reading. The default receive buffer holds
// fewer (212,992 bytes, at least 768 per message), so only a sender that is as fast as
// the reader reaches it.
const drainMost = 512

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

// watcher reads the kernel's messages. Each source has a goroutine, which ends
// when its socket is closed.
type watcher struct {
	subsystems []string
	sources    []*source
	changed    chan struct{}
}

// source is a socket for the kernel's messages, which are only hints that something has
// changed. One goroutine reads it; any may close it.
type source struct {
	*os.File
	conn   syscall.RawConn
	counts func(msg []byte) bool
	buf    []byte // of a message
	oob    []byte // of its sender's credentials
}

func newWatcher(subsystems []string) (*watcher, error) {
	w := &watcher{subsystems: subsystems, changed: make(chan struct{}, 1)}
	uevents, err := listen(unix.NETLINK_KOBJECT_UEVENT, groupUevent, w.countsUevent)
	if err != nil {
		return nil, err
	}
	w.sources = append(w.sources, uevents)
	notify, err := listen(unix.NETLINK_RDMA, groupNotify, func([]byte) bool { return true })
	if err == nil {
		w.sources = append(w.sources, notify)
	}
	if err == nil || lacksNotify(err) {
		return w, nil
	}
	return nil, errors.Join(err, uevents.Close())
}

// lacksNotify reports whether the kernel has no RDMA yet, or no notifications. Uevents
// suffice then.
func lacksNotify(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// listen joins a group of a netlink protocol and asks for the senders' credentials.
// The socket is connected to the kernel, so the kernel refuses messages that other
// processes send to its port; drain drops those that they send to the group.
func listen(protocol, group int, counts func(msg []byte) bool) (*source, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	conn, err := f.SyscallConn()
	if err == nil {
		err = join(fd, group)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &source{
		File: f, conn: conn, counts: counts,
		buf: make([]byte, maxUevent), oob: make([]byte, unix.CmsgSpace(unix.SizeofUcred)),
	}, nil
}

func join(fd, group int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
}

// run reads until ctx ends or a source fails. If one source fails, run closes the others,
// because the watch would be incomplete.
func (w *watcher) run(ctx context.Context) {
	defer close(w.changed)
	defer context.AfterFunc(ctx, w.close)()
	var readers sync.WaitGroup
	for _, s := range w.sources {
		readers.Go(func() {
			defer w.close()
			w.read(ctx, s)
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

// read sends a hint when relevant messages have arrived or messages were lost. During a
// pause the kernel queues messages.
func (w *watcher) read(ctx context.Context, s *source) {
	for readings := rate.NewLimiter(rate.Every(readingPause), readingBurst); ; {
		news, err := s.drain()
		if err != nil {
			return
		}
		if news {
			w.hint()
		}
		select {
		case <-ctx.Done():
		case <-time.After(readings.Reserve().Delay()):
		}
	}
}

// drain waits for a message, reads all that are queued, and reports whether one of
// them is from the kernel and counts, or some were lost. It ignores a message that is
// longer than the buffer: the kernel sends none. drain fails once the socket is closed.
func (s *source) drain() (news bool, err error) {
	err = s.conn.Read(func(fd uintptr) bool {
		for n := range drainMost {
			size, oobn, flags, from, err := unix.Recvmsg(int(fd), s.buf, s.oob, 0)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return n > 0
			case err != nil: // ENOBUFS: some were lost
				news = true
			case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 && fromKernel(from, s.oob[:oobn]):
				news = news || s.counts(s.buf[:size])
			}
		}
		return true
	})
	return news, err
}

func (w *watcher) countsUevent(msg []byte) bool {
	ev, ok := parseUevent(msg)
	return ok && ev.of(w.subsystems)
}

func (w *watcher) hint() {
	select {
	case w.changed <- struct{}{}:
	default: // the last hint has not been received yet
	}
}

// fromKernel reports whether the kernel is the sender: its port and process ID are 0, which
// no process can have (netlink_recvmsg, net/netlink/af_netlink.c).
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
