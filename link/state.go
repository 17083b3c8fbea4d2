package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State implements [Device].
func (t *TAP) State() (s State, err error) {
	err = t.visit(func(r *rtnl, l netlink.Link) (err error) {
		s, err = r.state(l)
		return err
	})
	switch {
	case errors.Is(err, ErrGone), errors.Is(err, ErrPermission):
		return State{}, nil
	case err != nil:
		return State{}, fmt.Errorf("read the state of %s: %w", t.name, err)
	}
	return s, nil
}

// Counters implements [Device].
func (t *TAP) Counters() (Counters, error) {
	c := t.count.snapshot()
	err := t.visit(func(_ *rtnl, l netlink.Link) error {
		c.Kernel = kernelCounters(l.Attrs().Statistics)
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read the counters of %s: %w", t.name, err)
	}
	return c, nil
}

// state is that of an interface just read, with its addresses.
func (r *rtnl) state(l netlink.Link) (s State, err error) {
	s = stateOf(l.Attrs())
	if s.Addrs, err = r.addrs(l); err != nil {
		return State{}, err
	}
	s.Above, err = r.addrsAbove(s.Master)
	return s, err
}

func stateOf(a *netlink.LinkAttrs) State {
	s := State{
		Index:   a.Index,
		Name:    a.Name,
		Present: true,
		Up:      a.RawFlags&unix.IFF_UP != 0,
		Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		MTU:     a.MTU,
		Master:  a.MasterIndex,
		Alias:   a.Alias,
	}
	copy(s.MAC[:], a.HardwareAddr)
	return s
}

func (r *rtnl) addrsAbove(master int) ([]netip.Prefix, error) {
	if master == 0 {
		return nil, nil
	}
	l, err := r.byIndex(master)
	if err != nil || l == nil {
		return nil, err
	}
	return r.addrs(l)
}
