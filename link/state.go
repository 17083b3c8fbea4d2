package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State implements [Device].
func (t *TAP) State() (State, error) {
	s, err := t.nl.state(t.index)
	if err != nil {
		return State{}, fmt.Errorf("read the state of %s: %w", t.name, classify(err))
	}
	return s, nil
}

// Counters implements [Device].
func (t *TAP) Counters() (Counters, error) {
	c := t.count.snapshot()
	l, err := t.nl.byIndex(t.index)
	switch {
	case err != nil:
		return c, fmt.Errorf("read the counters of %s: %w", t.name, classify(err))
	case l == nil:
		return c, fmt.Errorf("read the counters of %s: %w", t.name, ErrGone)
	}
	c.Kernel = kernelCounters(l.Attrs().Statistics)
	return c, nil
}

// state reads the state of an interface; a zero one where there is none.
func (r *rtnl) state(index int) (State, error) {
	l, err := r.byIndex(index)
	if err != nil || l == nil {
		return State{}, err
	}
	s := stateOf(l.Attrs())
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
