package udp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
)

// watcher monitors one netdev. Its goroutine ends with Close.
type watcher struct {
	index int
	// ethernet: packets of the netdev have an Ethernet header, unlike those of a tunnel. It does not change.
	ethernet bool

	ns     *os.File // the network namespace in which the netdev was found
	list   lister   // used only by the goroutine, once it runs
	events *kernel.Notifications
	ended  chan struct{}   // closed when the goroutine has ended
	closed chan struct{}   // closed by Close
	here   atomic.Bool     // the netdev is present, for Send
	size   atomic.Int32    // the netdev's MTU
	last   transport.State // as listed last; used as list is
	// tooLong has a value after a packet was too long for its path; see PathChanged.
	tooLong chan struct{}

	state transport.Monitor // what was published
}

// lister returns the current state of a netdev: hca.ErrNoDevice if it is gone. The
// calling thread is in the netdev's namespace.
type lister func(index int) (transport.State, error)

// newWatcher returns a watcher of a netdev, or hca.ErrNoDevice if it does not exist.
func newWatcher(netdev string) (*watcher, error) {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return nil, linkError(err)
	}
	w, err := startWatcher(link.Attrs().Index, listState)
	if err != nil {
		return nil, err
	}
	w.ethernet = link.Attrs().EncapType == "ether"
	return w, nil
}

// startWatcher subscribes before it lists, so that it misses no change.
func startWatcher(index int, list lister) (*watcher, error) {
	ns, err := kernel.Namespace()
	if err != nil {
		return nil, err
	}
	events, err := kernel.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	w := &watcher{
		index: index, ns: ns, list: list, events: events,
		ended: make(chan struct{}), closed: make(chan struct{}), tooLong: make(chan struct{}, 1),
	}
	if err := w.relist(); err != nil || !w.here.Load() {
		events.Close()
		ns.Close()
		return nil, cmp.Or(err, hca.ErrNoDevice)
	}
	go w.run()
	return w, nil
}

// linkError returns hca.ErrNoDevice for a look-up that found no netdev.
func linkError(err error) error {
	if err == nil {
		return nil
	}
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return hca.ErrNoDevice
	}
	return fmt.Errorf("find the netdev: %w", err)
}

// run reads notifications until Close, at the rate of kernel. A lost notification causes a
// list as well. A list that failed is repeated after the pause.
func (w *watcher) run() {
	defer close(w.ended)
	for failed := false; w.here.Load(); {
		changed := failed
		if !failed {
			var err error
			if changed, err = w.events.Drain(w.concerns); err != nil {
				return
			}
		}
		if changed {
			failed = w.relist() != nil
		}
		select {
		case <-w.closed:
			return
		case <-time.After(w.events.Pause()):
		}
	}
}

// concerns reports whether a notification is about the netdev.
func (w *watcher) concerns(msg []byte) bool {
	i := kernel.ParseInterface(msg)
	switch i.Kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return i.Index == w.index
	}
	return false
}

// listTries bounds how often a list is repeated because it changed while it was read.
const listTries = 5

// relist publishes the current state. If the list fails, the state stays as it was.
func (w *watcher) relist() error {
	var s transport.State
	var err error
	for range listTries {
		entered := kernel.InNamespace(w.ns, func() { s, err = w.list(w.index) })
		err = errors.Join(entered, err)
		if errors.Is(err, hca.ErrNoDevice) {
			s, err = gone(w.last), nil
		}
		if err == nil {
			w.last = s
			w.here.Store(s.Present)
			w.size.Store(int32(min(s.MTU, math.MaxInt32)))
			w.state.Set(s)
			return nil
		}
	}
	return err
}

// listState uses a new socket each time. A [netlink.Handle] keeps its socket, to which
// other processes can send messages, and fails at each of them.
func listState(index int) (transport.State, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return transport.State{}, linkError(err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return transport.State{}, fmt.Errorf("list the addresses: %w", err)
	}
	return stateOf(link.Attrs(), addrs), nil
}

// Present reports whether the netdev still exists.
func (w *watcher) Present() bool { return w.here.Load() }

// mtu returns the netdev's MTU.
func (w *watcher) mtu() int { return int(w.size.Load()) }

// TooLong reports that a packet was too long, for the netdev or for its path.
func (w *watcher) TooLong() {
	select {
	case w.tooLong <- struct{}{}:
	default: // the last report has not been received yet
	}
}

// HasAddr reports whether the netdev has a usable address.
func (w *watcher) HasAddr(a netip.Addr) bool { return w.state.Has(a) }

// State returns the current state.
func (w *watcher) State() transport.State { return w.state.State() }

// WaitChange blocks until the state differs from the one returned last.
func (w *watcher) WaitChange(ctx context.Context) (transport.State, error) {
	return w.state.WaitChange(ctx, w.closed)
}

// Close ends the goroutine, then closes what it used. It must be called once.
func (w *watcher) Close() {
	close(w.closed)
	w.events.Close()
	<-w.ended
	w.ns.Close()
}
