package link

import (
	"errors"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpTries bounds how often a dump that the kernel interrupted is asked for
// again; each time something else was being changed.
const dumpTries = 5

// rtnl is a pair of netlink sockets that may be closed while others use them.
type rtnl struct {
	mu     sync.Mutex
	handle *netlink.Handle // nil once closed
	strict nl.SocketHandle // lists the addresses of one interface alone
}

func openRtnl() (*rtnl, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	sock, err := openStrict()
	if err != nil {
		h.Close()
		return nil, err
	}
	return &rtnl{handle: h, strict: nl.SocketHandle{Socket: sock}}, nil
}

// do calls f with the handle, again while a dump was interrupted.
func (r *rtnl) do(f func(h *netlink.Handle) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handle == nil {
		return ErrClosed
	}
	var err error
	for range dumpTries {
		if err = f(r.handle); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return err
}

func (r *rtnl) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handle != nil {
		r.handle.Close()
		r.strict.Close()
		r.handle = nil
	}
}

// byName returns an interface, nil where there is none.
func (r *rtnl) byName(name string) (l netlink.Link, err error) {
	err = r.do(func(h *netlink.Handle) error {
		l, err = h.LinkByName(name)
		return err
	})
	return foundOrNil(l, err)
}

func foundOrNil(l netlink.Link, err error) (netlink.Link, error) {
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil, nil
	}
	return l, err
}
