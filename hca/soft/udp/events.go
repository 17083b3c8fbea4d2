package udp

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// A watcher reads the kernel's messages at once, up to readingBurst times: that is more
// often than a netdev reports while it is created and configured. If they keep coming,
// readings are readingPause apart, so the state is listed at most 20 times a second.
const (
	readingBurst = 20
	readingPause = 50 * time.Millisecond
)

// newReadings returns the limit of one reader. Its reservation after a reading is the
// pause until the next one.
func newReadings() *rate.Limiter { return rate.NewLimiter(rate.Every(readingPause), readingBurst) }

// drainMost bounds the messages of one reading. The default receive buffer holds
// fewer (212,992 bytes, at least 768 per message), so only a sender that is as fast as
// the reader reaches it.
const drainMost = 512

// events is a socket for the kernel's notifications, which only say that something
// has changed. One goroutine uses it; any may close it.
type events struct {
	file *os.File
	conn syscall.RawConn
	buf  [unix.SizeofNlMsghdr + 8]byte // the index is behind the message's header
}

// event is the part of a message that is used.
type event struct {
	kind  uint16 // RTM_...
	index int    // of an interface; 0: none
}

// subscribe listens to groups of NETLINK_ROUTE. The socket is connected to the
// kernel, so the kernel refuses messages that other processes send to its port; drain
// drops those that they send to a group.
func subscribe(groups ...uint) (*events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	local := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		local.Groups |= 1 << (g - 1)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	conn, err := file.SyscallConn()
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, local))
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &events{file: file, conn: conn}, nil
}

func (e *events) close() { e.file.Close() }

// drain waits for a message, reads all that are queued, and reports whether one of
// them is from the kernel and concerns the caller, or some were lost. It fails once
// the socket is closed.
func (e *events) drain(concerns func(event) bool) (yes bool, err error) {
	err = e.conn.Read(func(fd uintptr) bool {
		for n := range drainMost {
			size, from, err := unix.Recvfrom(int(fd), e.buf[:], 0)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return n > 0
			case err != nil: // ENOBUFS: some were lost
				yes = true
			case fromKernel(from):
				yes = yes || concerns(parseEvent(e.buf[:size]))
			}
		}
		return true
	})
	return yes, err
}

// fromKernel reports whether a message has the kernel's port ID, which no other
// sender can have (netlink(7)).
func fromKernel(from unix.Sockaddr) bool {
	sender, ok := from.(*unix.SockaddrNetlink)
	return ok && sender.Pid == 0
}

// parseEvent reads a struct nlmsghdr (linux/netlink.h) and the interface's index,
// which is at offset 4 in struct ifinfomsg (linux/rtnetlink.h) and struct ifaddrmsg
// (linux/if_addr.h).
func parseEvent(b []byte) (ev event) {
	if len(b) >= unix.SizeofNlMsghdr {
		ev.kind = binary.NativeEndian.Uint16(b[4:])
	}
	if len(b) >= unix.SizeofNlMsghdr+8 {
		ev.index = int(int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr+4:])))
	}
	return ev
}
