package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// A user reads without delay up to ReadingBurst times: more often than a netdev or an RDMA
// device reports while it is created and configured. If messages keep coming, readings are
// ReadingPause apart, so there are at most 20 a second.
const (
	ReadingBurst = 20
	ReadingPause = 50 * time.Millisecond
)

// drainMost bounds the messages of one reading. The default receive buffer holds fewer
// (212,992 bytes, at least 768 per message), so only a sender that is as fast as the reader
// reaches it.
const drainMost = 512

// maxMessage bounds how many bytes of a message are read. It is more than the texts of a
// uevent have (2048, UEVENT_BUFFER_SIZE of include/linux/kobject.h). Of a longer message of
// another group the beginning suffices.
const maxMessage = 8192

// Notifications are the messages that the kernel sends to multicast groups of one netlink protocol
// (netlink(7)). To their users they are only hints that something has changed: the user then reads
// the state itself. So a hint may be superfluous, and it does not matter which message caused it.
//
// Any process with CAP_NET_ADMIN can send to such a group. Messages of processes are dropped, and
// the rate of readings is limited, so that a flood of them costs little.
//
// One goroutine calls Drain and Pause; any may call Close.
type Notifications struct {
	file     *os.File
	conn     syscall.RawConn
	readings *rate.Limiter
	buf      []byte // of a message
	oob      []byte // the ID of its namespace, and its sender's credentials
}

// Subscribe joins groups of a netlink protocol in the network namespace of the calling thread.
// The socket is connected to the kernel, so the kernel refuses messages that processes send
// to its port; Drain drops those that they send to a group. Errors: EPROTONOSUPPORT if the
// kernel does not have the protocol, EINVAL if the protocol does not have a group.
func Subscribe(protocol int, groups ...int) (*Notifications, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Notifications{
		file: os.NewFile(uintptr(fd), "netlink"), readings: rate.NewLimiter(rate.Every(ReadingPause), ReadingBurst),
		buf: make([]byte, maxMessage), oob: make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(unix.SizeofUcred)),
	}
	s.conn, err = s.file.SyscallConn()
	if err == nil {
		err = os.NewSyscallError("SO_PASSCRED", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, kernel))
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, kernel))
	}
	for i := 0; err == nil && i < len(groups); i++ {
		joined := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groups[i])
		err = os.NewSyscallError("NETLINK_ADD_MEMBERSHIP", joined)
	}
	if err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// EveryNamespace adds the messages of each network namespace that has an ID in this one, if the process
// may have them (NETLINK_LISTEN_ALL_NSID, netlink(7)).
func (s *Notifications) EveryNamespace() (err error) {
	cerr := s.conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	})
	if errors.Is(err, unix.EPERM) {
		return cerr
	}
	return errors.Join(cerr, os.NewSyscallError("NETLINK_LISTEN_ALL_NSID", err))
}

// SyscallConn implements [syscall.Conn], for socket options.
func (s *Notifications) SyscallConn() (syscall.RawConn, error) { return s.conn, nil }

// Close ends a Drain. It may be called again, with an error.
func (s *Notifications) Close() error { return s.file.Close() }

// Drain waits for a message, reads all that are queued, and reports whether one of them is
// from the kernel and counts, or some were lost. counts gets at most the first 8192 bytes of
// a message and must not keep them. Drain fails once the socket is closed.
func (s *Notifications) Drain(counts func(msg []byte) bool) (news bool, err error) {
	err = s.conn.Read(func(fd uintptr) bool {
		for n := range drainMost {
			size, oobn, _, from, err := unix.Recvmsg(int(fd), s.buf, s.oob, 0)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return n > 0
			case err != nil: // ENOBUFS: some were lost
				news = true
			case fromKernel(from, s.oob[:oobn]):
				news = counts(s.buf[:size]) || news
			}
		}
		return true
	})
	return news, err
}

// Pause returns how long to wait before the next Drain; meanwhile the kernel queues messages.
func (s *Notifications) Pause() time.Duration { return s.readings.Reserve().Delay() }

// Follow calls changed after each Drain that reports news, until the socket is closed. It
// closes the socket when ctx ends.
func (s *Notifications) Follow(ctx context.Context, counts func(msg []byte) bool, changed func()) {
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	for {
		news, err := s.Drain(counts)
		if err != nil {
			return
		}
		if news {
			changed()
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.Pause()):
		}
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
	if err != nil {
		return false
	}
	for _, m := range messages {
		if cred, err := syscall.ParseUnixCredentials(&m); err == nil {
			return cred.Pid == 0
		}
	}
	return false
}

// Interface is the part of a message of NETLINK_ROUTE about a netdev or its addresses.
type Interface struct {
	Kind  uint16 // RTM_...
	Index int    // of the netdev; 0: none
	Down  bool   // RTM_NEWLINK: the netdev is administratively down
}

// ParseInterface reads a struct nlmsghdr (linux/netlink.h) and the index of the netdev, which is the
// second 32-bit word of both struct ifinfomsg (linux/rtnetlink.h) and struct ifaddrmsg (linux/if_addr.h).
// The third of ifinfomsg has the flags.
func ParseInterface(msg []byte) (i Interface) {
	if len(msg) >= unix.SizeofNlMsghdr {
		i.Kind = binary.NativeEndian.Uint16(msg[4:])
	}
	if len(msg) >= unix.SizeofNlMsghdr+8 {
		i.Index = int(int32(binary.NativeEndian.Uint32(msg[unix.SizeofNlMsghdr+4:])))
	}
	if i.Kind == unix.RTM_NEWLINK && len(msg) >= unix.SizeofNlMsghdr+12 {
		i.Down = binary.NativeEndian.Uint32(msg[unix.SizeofNlMsghdr+8:])&unix.IFF_UP == 0
	}
	return i
}
