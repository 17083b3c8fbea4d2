package link

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State implements [Device].
func (t *TAP) State() (s State, err error) {
	err = t.dev.visit(func(r *rtnl, l netlink.Link) (err error) {
		s, err = r.state(l, len(t.tun.queues))
		s.Away = r != t.dev.nl
		return err
	})
	switch {
	case errors.Is(err, ErrGone), errors.Is(err, ErrPermission):
		return State{}, nil
	case err != nil:
		return State{}, fmt.Errorf("read the state of %s: %w", t.tun.name, err)
	}
	return s, nil
}

const (
	// awayEvery bounds how often KernelCounters enters another network namespace. The kernel releases the socket of
	// a visit, and with it the namespace, only after a while, so clients that ask again and again for the
	// counters would keep a container's namespace after the container has ended.
	awayEvery = 100 * time.Millisecond
	// countersPatience is how long a reading of the kernel's counters is waited for. The kernel answers within
	// a millisecond unless another process holds its rtnl lock.
	countersPatience = 200 * time.Millisecond
)

// reading is the last reading of the kernel's counters.
type reading struct {
	mu     sync.Mutex
	at     time.Time // if it was in another namespace
	kernel KernelCounters
	err    error
	ended  chan struct{} // closed when the reading under way has ended; nil: none is under way
	until  time.Time     // how long to wait for that
}

var errLocked = errors.New("the kernel does not answer, perhaps because another process holds its lock of all interfaces (rtnl)")

// Counters implements [Device].
func (t *TAP) Counters() Counters { return t.tun.count.snapshot() }

// KernelCounters implements [Device]. While the interface is in another network namespace, they are up to
// awayEvery old.
func (t *TAP) KernelCounters() (KernelCounters, error) {
	r := &t.reading
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) < awayEvery {
		return r.kernel, nil
	}
	if r.ended == nil {
		if err := t.startReading(); err != nil {
			return KernelCounters{}, fmt.Errorf("read the counters of %s: %w", t.tun.name, err)
		}
	}
	ended, wait := r.ended, time.NewTimer(time.Until(r.until))
	r.mu.Unlock()
	defer wait.Stop()
	err := errLocked
	select {
	case <-ended:
		err = nil
	case <-wait.C:
	}
	r.mu.Lock()
	if err = cmp.Or(err, r.err); err != nil {
		return KernelCounters{}, fmt.Errorf("read the counters of %s: %w", t.tun.name, err)
	}
	return r.kernel, nil
}

// startReading reads the counters on a goroutine of its own. t.reading.mu is held.
func (t *TAP) startReading() error {
	t.watchMu.Lock()
	defer t.watchMu.Unlock()
	if t.tun.open.Err() != nil {
		return ErrClosed
	}
	r, ended := &t.reading, make(chan struct{})
	r.ended, r.until = ended, time.Now().Add(countersPatience)
	t.watchers.Go(func() {
		k, away, err := t.dev.counters()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kernel, r.err, r.ended = k, err, nil; away {
			r.at = time.Now()
		}
		close(ended)
	})
	return nil
}

// counters reads the kernel's counters, and reports whether the interface is in another network namespace.
func (d *netdev) counters() (k KernelCounters, away bool, err error) {
	err = d.visit(func(r *rtnl, l netlink.Link) error {
		away = r != d.nl
		if s := l.Attrs().Statistics; s != nil {
			k = *s
		}
		return nil
	})
	return k, away && err == nil, err
}

// state returns the state of an interface, with its addresses. own is the number of queues of
// this process.
func (r *rtnl) state(l netlink.Link, own int) (s State, err error) {
	a := l.Attrs()
	s = State{
		Index:       a.Index,
		Name:        a.Name,
		Present:     true,
		Up:          a.RawFlags&unix.IFF_UP != 0,
		Carrier:     a.RawFlags&unix.IFF_LOWER_UP != 0,
		Promiscuous: a.Promisc != 0,
		MTU:         a.MTU,
		Master:      a.MasterIndex,
		Alias:       a.Alias,
		Foreign:     foreign(l, own),
	}
	copy(s.MAC[:], a.HardwareAddr)
	if s.Addrs, err = r.addrs(s.Index); err != nil {
		return State{}, err
	}
	if s.Master == 0 {
		return s, nil
	}
	if s.Above, err = r.addrs(s.Master); err != nil {
		return State{}, err
	}
	master, err := r.byIndex(s.Master)
	if err == nil && master != nil && master.Type() != "vrf" {
		copy(s.MasterMAC[:], master.Attrs().HardwareAddr)
	}
	return s, err
}

// SetMTU sets the interface's MTU, in bytes of payload of an Ethernet frame. May
// block.
func (t *TAP) SetMTU(mtu int) error {
	err := t.dev.visit(func(r *rtnl, l netlink.Link) error {
		return r.setLink(l.Attrs().Index, uint32Attr(unix.IFLA_MTU, uint32(mtu)))
	})
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", t.tun.name, mtu, err)
	}
	return nil
}
