package link

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State implements [Device].
func (t *TAP) State() (s State, err error) {
	err = t.visit(func(r *rtnl, l netlink.Link) (err error) {
		s, err = r.state(l, len(t.queues))
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

// awayEvery bounds how often KernelCounters enters another network namespace. The kernel releases the socket of
// a visit, and with it the namespace, only after a while, so clients that ask again and again for the
// counters would keep a container's namespace after the container has ended.
const awayEvery = 100 * time.Millisecond

// awayReading is the last reading of the kernel's counters in another namespace.
type awayReading struct {
	mu     sync.Mutex
	at     time.Time
	kernel KernelCounters
}

// Counters implements [Device].
func (t *TAP) Counters() Counters { return t.count.snapshot() }

// KernelCounters implements [Device]. While the interface is in another network namespace, they are up to
// awayEvery old.
func (t *TAP) KernelCounters() (k KernelCounters, err error) {
	t.away.mu.Lock()
	defer t.away.mu.Unlock()
	if time.Since(t.away.at) < awayEvery {
		return t.away.kernel, nil
	}
	away := false
	err = t.visit(func(r *rtnl, l netlink.Link) error {
		away = r != t.nl
		if s := l.Attrs().Statistics; s != nil {
			k = KernelCounters{
				RxPackets: s.RxPackets, RxBytes: s.RxBytes, RxDropped: s.RxDropped, RxErrors: s.RxErrors,
				TxPackets: s.TxPackets, TxBytes: s.TxBytes, TxDropped: s.TxDropped, TxErrors: s.TxErrors,
			}
		}
		return nil
	})
	if err != nil {
		return KernelCounters{}, fmt.Errorf("read the counters of %s: %w", t.name, err)
	}
	if away {
		t.away.at, t.away.kernel = time.Now(), k
	}
	return k, nil
}

// state returns the state of an interface, with its addresses. own is the number of queues of
// this process.
func (r *rtnl) state(l netlink.Link, own int) (s State, err error) {
	a := l.Attrs()
	s = State{
		Index:   a.Index,
		Name:    a.Name,
		Present: true,
		Up:      a.RawFlags&unix.IFF_UP != 0,
		Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		MTU:     a.MTU,
		Master:  a.MasterIndex,
		Alias:   a.Alias,
		Foreign: foreign(l, own),
	}
	copy(s.MAC[:], a.HardwareAddr)
	if s.Addrs, err = r.addrs(s.Index); err != nil {
		return State{}, err
	}
	if s.Master != 0 {
		s.Above, err = r.addrs(s.Master)
	}
	return s, err
}

// SetMTU sets the interface's MTU, in bytes of payload of an Ethernet frame. May
// block.
func (t *TAP) SetMTU(mtu int) error {
	err := t.visit(func(r *rtnl, l netlink.Link) error {
		return r.setLink(l.Attrs().Index, uint32Attr(unix.IFLA_MTU, uint32(mtu)))
	})
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", t.name, mtu, err)
	}
	return nil
}
