package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// memberships are the groups that this process has joined on the netdev.
type memberships struct {
	index int
	ns    *os.File // the network namespace in which the sockets are made, whatever the thread

	// changing is held while a group is joined or left, which may wait for the kernel's rtnl lock. It comes
	// before mu, which is not held meanwhile and guards what follows.
	changing sync.Mutex
	mu       sync.Mutex

	closed  bool
	given   bool // another process has the sockets too, so their groups stay joined
	count   map[netip.Addr]int
	holder  map[netip.Addr]int // the socket that holds a group
	sockets []int              // descriptors, sorted by the time at which they became full
}

func newMemberships(index int) (*memberships, error) {
	ns, err := kernel.Namespace()
	if err != nil {
		return nil, err
	}
	return &memberships{
		index: index, ns: ns,
		count: make(map[netip.Addr]int), holder: make(map[netip.Addr]int),
	}, nil
}

// Join implements transport.Transport. It returns hca.ErrInvalid for an address that is
// not a group, hca.ErrIO once the netdev is gone, and hca.ErrNoMemory if the kernel
// accepts no more groups.
func (t *Transport) Join(group netip.Addr) error {
	if !group.IsMulticast() || group.Is4In6() || group.Zone() != "" {
		return fmt.Errorf("join %v: not a group: %w", group, hca.ErrInvalid)
	}
	if err := t.groups.join(group); err != nil {
		return fmt.Errorf("join %v: %w", group, err)
	}
	return nil
}

// Leave implements transport.Transport. It returns hca.ErrInvalid for a group that was not
// joined.
func (t *Transport) Leave(group netip.Addr) error {
	if err := t.groups.leave(group); err != nil {
		return fmt.Errorf("leave %v: %w", group, err)
	}
	return nil
}

func (m *memberships) join(group netip.Addr) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	if known, err := m.again(group); known || err != nil {
		return err
	}
	fd, fresh, err := m.add(group)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if fresh {
		m.sockets = append(m.sockets, fd)
	}
	m.holder[group], m.count[group] = fd, 1
	return nil
}

// again counts another member of a group that is joined already, and reports whether it is.
func (m *memberships) again(group netip.Addr) (known bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, hca.ErrClosed
	}
	if m.count[group] == 0 {
		return false, nil
	}
	m.count[group]++
	return true, nil
}

func (m *memberships) leave(group netip.Addr) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	fd, last, err := m.less(group)
	if last {
		// An error means that the membership has ended already, with its netdev.
		_ = m.set(fd, group, unix.IP_DROP_MEMBERSHIP, unix.IPV6_LEAVE_GROUP)
	}
	return err
}

// less counts one member of a group less. It reports whether the socket must leave the group.
func (m *memberships) less(group netip.Addr) (fd int, last bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return -1, false, hca.ErrClosed
	case m.count[group] == 0:
		return -1, false, hca.ErrInvalid
	}
	if m.count[group]--; m.count[group] > 0 {
		return -1, false, nil
	}
	fd = m.holder[group]
	delete(m.count, group)
	delete(m.holder, group)
	return fd, !m.given, nil
}

// add joins on the first socket that accepts the group, or on a new one.
func (m *memberships) add(group netip.Addr) (fd int, fresh bool, err error) {
	for _, fd := range m.sockets {
		if err := m.tryAdd(fd, group); !errors.Is(err, hca.ErrNoMemory) {
			return fd, false, err
		}
	}
	entered := kernel.InNamespace(m.ns, func() { fd, _, err = dualSocket() })
	if err = errors.Join(entered, err); err != nil {
		return -1, false, err
	}
	if err := m.tryAdd(fd, group); err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, true, nil
}

func (m *memberships) tryAdd(fd int, group netip.Addr) error {
	err := m.set(fd, group, unix.IP_ADD_MEMBERSHIP, unix.IPV6_JOIN_GROUP)
	switch {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w (%w)", hca.ErrNoMemory, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w (%w)", hca.ErrIO, err)
	}
	return err
}

func (m *memberships) set(fd int, group netip.Addr, option4, option6 int) error {
	if group.Is4() {
		mreq := &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(m.index)}
		return unix.SetsockoptIPMreqn(fd, unix.SOL_IP, option4, mreq)
	}
	mreq := &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(m.index)}
	return unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, option6, mreq)
}

// ExportMemberships puts the sockets that are members of the groups into a capsule, as the part "memberships". As
// long as a duplicate of one is open, its groups stay joined.
func (t *Transport) ExportMemberships(w *capsule.Writer) {
	t.groups.mu.Lock()
	defer t.groups.mu.Unlock()
	w.PutFDs("memberships", nil, t.groups.sockets...)
}

// GiveUpMemberships makes Leave and Close keep the groups joined for the process that got the memberships.
func (t *Transport) GiveUpMemberships() {
	t.groups.mu.Lock()
	defer t.groups.mu.Unlock()
	t.groups.given = true
}

// close leaves all groups.
func (m *memberships) close() error {
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	errs := []error{m.ns.Close()}
	for _, fd := range m.sockets {
		errs = append(errs, unix.Close(fd))
	}
	m.sockets = nil
	return errors.Join(errs...)
}
