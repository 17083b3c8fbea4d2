package link

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpTries bounds how often a dump that the kernel interrupted is asked for
// again; each time something else was being changed.
const dumpTries = 5

// rtnl is a netlink socket that may be closed while others use it.
type rtnl struct {
	mu     sync.Mutex
	handle *netlink.Handle // nil once closed
}

func openRtnl() (*rtnl, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &rtnl{handle: h}, nil
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

// byIndex returns an interface, nil where there is none.
func (r *rtnl) byIndex(index int) (l netlink.Link, err error) {
	err = r.do(func(h *netlink.Handle) error {
		l, err = h.LinkByIndex(index)
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

// unproven are the flags of an address that is not, or not yet, the host's to
// announce: duplicate address detection is under way or has failed (RFC 4862,
// section 5.4; linux/if_addr.h).
const unproven = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

// addrs returns the addresses of an interface, sorted.
func (r *rtnl) addrs(l netlink.Link) (out []netip.Prefix, err error) {
	err = r.do(func(h *netlink.Handle) error {
		list, err := h.AddrList(l, netlink.FAMILY_ALL)
		out = prefixes(list)
		return err
	})
	return out, err
}

// prefixes leaves out what is unproven.
func prefixes(list []netlink.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Flags&unproven != 0 {
			continue
		}
		bits, _ := a.Mask.Size()
		out = append(out, netip.PrefixFrom(ip.Unmap(), bits))
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return out
}
