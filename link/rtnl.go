package link

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpTries bounds how often a dump is repeated that was interrupted because the dumped
// objects changed.
const dumpTries = 5

// rtnl is a netlink socket that may be closed while other goroutines use it. It is
// connected to the kernel: otherwise messages of other processes could fill it, and the
// kernel's answers would be lost. The sockets of a [netlink.Handle] cannot be
// connected, so rtnl builds its requests itself.
type rtnl struct {
	mu     sync.Mutex
	socket nl.SocketHandle // its Socket is nil once closed
}

func openRtnl() (*rtnl, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	err = os.NewSyscallError("connect", unix.Connect(s.GetFd(), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err == nil {
		// The kernel then lists only what a request asks for (netlink(7)). Before Linux 4.20
		// it lists everything.
		err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
		if errors.Is(err, unix.ENOPROTOOPT) {
			err = nil
		}
		err = os.NewSyscallError("NETLINK_GET_STRICT_CHK", err)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return &rtnl{socket: nl.SocketHandle{Socket: s}}, nil
}

func (r *rtnl) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket.Socket != nil {
		r.socket.Socket.Close()
		r.socket.Socket = nil
	}
}

// set sends a request that is answered only by an acknowledgement or an error.
func (r *rtnl) set(kind int, data ...nl.NetlinkRequestData) error {
	return r.send(kind, unix.NLM_F_ACK, 0, data, ignore)
}

// dump calls each with the messages that answer a request, until each returns false. It
// calls begin at the start, and again when the kernel has interrupted the dump and dump
// repeats it.
func (r *rtnl) dump(
	kind int, answer uint16, begin func(), each func(m []byte) bool, data ...nl.NetlinkRequestData,
) (err error) {
	for range dumpTries {
		begin()
		if err = r.send(kind, unix.NLM_F_DUMP, answer, data, each); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return err
}

func (r *rtnl) send(kind, flags int, answer uint16, data []nl.NetlinkRequestData, each func(m []byte) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket.Socket == nil {
		return ErrClosed
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: &r.socket}
	for _, d := range data {
		req.AddData(d)
	}
	return req.ExecuteIter(unix.NETLINK_ROUTE, answer, each)
}

// byName returns an interface, or nil if there is none.
func (r *rtnl) byName(name string) (netlink.Link, error) {
	return r.link(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
}

// byIndex returns an interface, or nil if there is none.
func (r *rtnl) byIndex(index int) (netlink.Link, error) { return r.link(linkMessage(index)) }

func (r *rtnl) link(which ...nl.NetlinkRequestData) (l netlink.Link, err error) {
	sendErr := r.send(unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, which, func(m []byte) bool {
		l, err = netlink.LinkDeserialize(nil, m)
		return true
	})
	if errors.Is(sendErr, unix.ENODEV) {
		return nil, nil
	}
	return l, errors.Join(sendErr, err)
}

// setLink changes attributes of an interface (linux/if_link.h).
func (r *rtnl) setLink(index int, attrs ...nl.NetlinkRequestData) error {
	return r.set(unix.RTM_SETLINK, append([]nl.NetlinkRequestData{linkMessage(index)}, attrs...)...)
}

func (r *rtnl) deleteLink(index int) error { return r.set(unix.RTM_DELLINK, linkMessage(index)) }

func linkMessage(index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return msg
}

func uint32Attr(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.NativeEndian.AppendUint32(nil, value))
}
