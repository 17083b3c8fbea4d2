package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// stateRetry is the pause before a state that could not be read is tried anew.
const stateRetry = 50 * time.Millisecond

// Watch implements [Device]. The subscription begins before the first state is
// read, so no change falls between the two.
func (t *TAP) Watch(ctx context.Context) (<-chan State, error) {
	t.watchMu.Lock()
	defer t.watchMu.Unlock()
	if t.ctx.Err() != nil {
		return nil, fmt.Errorf("watch %s: %w", t.name, ErrClosed)
	}
	sock, err := subscribe()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", t.name, classify(err))
	}
	w := &watcher{tap: t, sock: sock, out: make(chan State, 1)}
	t.watchers.Go(func() { w.run(ctx) })
	return w.out, nil
}

// subscribe hears of this namespace and, where that is permitted, of every one
// that has an ID in it (netlink(7), NETLINK_LISTEN_ALL_NSID), and when such a one
// is gone.
func subscribe() (*nl.NetlinkSocket, error) {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NSID)
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	if err != nil && !errors.Is(err, unix.EPERM) {
		sock.Close()
		return nil, os.NewSyscallError("NETLINK_LISTEN_ALL_NSID", err)
	}
	return sock, nil
}

// watcher is one Watch; its goroutine owns it.
type watcher struct {
	tap  *TAP
	sock *nl.NetlinkSocket
	out  chan State
	last State // published last, where begun

	begun bool
}

// run ends with ctx or the TAP, either of which closes the socket under the
// Receive.
func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(w.tap.ctx, cancel)
	defer stop()
	context.AfterFunc(ctx, w.sock.Close)
	for changed := true; ctx.Err() == nil; changed = w.receive() {
		if changed {
			w.update(ctx)
		}
	}
}

// receive reports whether the state may have changed.
func (w *watcher) receive() bool {
	msgs, _, err := w.sock.Receive()
	if err != nil {
		return true // lost messages, or the end
	}
	for _, m := range msgs {
		if w.concerns(m) {
			return true
		}
	}
	return false
}

// concerns reports whether a message may be about the interface, its master, or
// the end of the namespace that they are in. Which namespace it comes from is
// not asked: the same index of another one costs a reading in vain.
func (w *watcher) concerns(m syscall.NetlinkMessage) bool {
	if m.Header.Type == unix.RTM_DELNSID {
		return true
	}
	i := interfaceOf(m.Data)
	return i == w.last.Index || i == w.last.Master
}

// interfaceOf returns the index in a struct ifinfomsg (linux/rtnetlink.h) or
// struct ifaddrmsg (linux/if_addr.h): in both the second 32-bit word. It is 0
// where there is none.
func interfaceOf(body []byte) int {
	if len(body) < 8 {
		return 0
	}
	return int(nl.NativeEndian().Uint32(body[4:8]))
}

// update publishes the state where it differs from the last, and at first.
func (w *watcher) update(ctx context.Context) {
	s, ok := w.read(ctx)
	known := w.begun && reflect.DeepEqual(s, w.last)
	if ok && !known {
		w.put(s)
	}
}

// read reads the state, until it succeeds or ctx ends.
func (w *watcher) read(ctx context.Context) (State, bool) {
	for ctx.Err() == nil {
		s, err := w.tap.State()
		if err == nil {
			return s, true
		}
		if errors.Is(err, ErrClosed) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(stateRetry):
		}
	}
	return State{}, false
}

// put replaces what the reader has not taken. Nobody else sends, so it does
// not block.
func (w *watcher) put(s State) {
	w.last, w.begun = s, true
	select {
	case <-w.out:
	default:
	}
	w.out <- s
}
