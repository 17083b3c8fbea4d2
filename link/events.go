package link

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// eventGroups are the multicast groups of links, addresses and namespace IDs
// (linux/rtnetlink.h).
const eventGroups = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) |
	1<<(unix.RTNLGRP_IPV6_IFADDR-1) | 1<<(unix.RTNLGRP_NSID-1)

// drainMost bounds the messages that one drain reads. The kernel's default receive
// buffer holds fewer (212,992 bytes, at least 768 per message), so only a sender that
// is as fast as the drain reaches it.
const drainMost = 512

// eventLen is how many bytes of a message are read. The headers suffice.
const eventLen = 64

// event is the part of a netlink message that is used.
type event struct {
	kind  uint16 // RTM_...
	index int    // of an interface, 0: none
	down  bool   // the message says that the interface is administratively down
}

// events is a socket for the kernel's notifications, which are only hints that something
// has changed. One goroutine uses it; any may close it.
type events struct {
	file *os.File
	conn syscall.RawConn
	buf  [eventLen]byte
}

// subscribe opens a socket for the notifications of this namespace, including the removal
// of namespace IDs, and if permitted for those of every namespace that has an ID in this one
// (netlink(7), NETLINK_LISTEN_ALL_NSID). The socket is connected to the kernel, so the
// kernel refuses messages that other processes send to its port. Messages that they send to
// a group arrive, and drain drops them.
func subscribe() (*events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	conn, err := file.SyscallConn()
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: eventGroups}))
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
		if errors.Is(err, unix.EPERM) {
			err = nil
		}
		err = os.NewSyscallError("NETLINK_LISTEN_ALL_NSID", err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &events{file: file, conn: conn}, nil
}

func (e *events) close() { e.file.Close() }

// drain waits for a message, passes all that are queued to concerns, and reports whether one of
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
			default: // only the kernel has port ID 0 (netlink(7))
				if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
					yes = concerns(parseEvent(e.buf[:size])) || yes
				}
			}
		}
		return true
	})
	return yes, err
}

// parseEvent reads a struct nlmsghdr (linux/netlink.h) and the interface index after
// it, which is the second 32-bit word of both struct ifinfomsg (linux/rtnetlink.h) and
// struct ifaddrmsg (linux/if_addr.h). The third of ifinfomsg has the flags.
func parseEvent(b []byte) (ev event) {
	if len(b) >= unix.SizeofNlMsghdr {
		ev.kind = binary.NativeEndian.Uint16(b[4:])
	}
	if len(b) >= unix.SizeofNlMsghdr+8 {
		ev.index = int(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr+4:]))
	}
	if ev.kind == unix.RTM_NEWLINK && len(b) >= unix.SizeofNlMsghdr+12 {
		ev.down = binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr+8:])&unix.IFF_UP == 0
	}
	return ev
}
