package udp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Config configures a transport.
type Config struct {
	Netdev string // in the calling thread's network namespace
	// Reserve keeps the ports bound after the transport is closed; nil: Close frees
	// them.
	Reserve *Reserve
	// Lanes is the number of transports that OpenLanes opens, up to transport.MaxLanes; 0 means
	// 1. It must be a power of two, because the numbers of source ports are divided by it. Open
	// ignores it.
	Lanes int
	// FastPath is the kernel's fast path of this process; nil: no fast path. The caller attaches its program to the netdev.
	FastPath *bpf.FastPath
	RecvBuf  int // receive buffer of the socket in bytes; 0 means 8 MiB
	SendBuf  int // send buffer of the socket in bytes; 0 means 128 MiB
}

// Transport is a [transport.Transport] on a netdev.
type Transport struct {
	sendBuf int // requested, in bytes
	tx      *sender
	rx      *receiver
	groups  *memberships
	ports   *ports // of the reserve
	watch   *watcher
	paths   *pathSockets
	fast    *bpf.FastPath // of the process; nil: no fast path
	gates   gates
	lane    int // its number; watch, groups, paths and gates belong to lane 0
	closing sync.Once
	closed  error // the error of Close
}

var _ transport.Transport = (*Transport)(nil)

// Open opens a transport on a netdev, which may be down or without an address. It returns
// hca.ErrNoDevice for a missing netdev, a *PortTakenError for a port in use, and the
// system's errors.
func Open(cfg Config) (*Transport, error) {
	cfg.Lanes = 1
	return openFirst(cfg)
}

// openFirst opens the transport of the first lane, and the sockets of all.
func openFirst(cfg Config) (*Transport, error) {
	t := new(Transport)
	if err := t.open(cfg); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("open UDP transport on %q: %w", cfg.Netdev, err)
	}
	return t, nil
}

// open leaves it to Close to undo a partial success.
func (t *Transport) open(cfg Config) (err error) {
	if n := cfg.Lanes; n < 0 || n > transport.MaxLanes || n&(n-1) != 0 {
		return fmt.Errorf("open %d lanes: %w", n, hca.ErrInvalid)
	}
	if t.watch, err = newWatcher(cfg.Netdev); err != nil {
		return err
	}
	now := t.watch.State()
	reserve := cfg.Reserve
	if reserve == nil {
		reserve = new(Reserve)
		defer reserve.Close()
	}
	recv, send, p, err := reserve.acquire(&cfg, &now)
	if err != nil {
		return err
	}
	t.ports = p
	t.fast, t.gates.watch = cfg.FastPath, t.watch
	t.sendBuf = cmp.Or(cfg.SendBuf, defaultSendBuf)
	t.rx, t.tx = newReceiver(recv, reserve), newSender(send, now.Index, t.watch)
	if t.groups, err = newMemberships(now.Index); err != nil {
		return err
	}
	t.paths, err = openPaths(now.Index)
	return err
}

// SrcPort implements transport.Transport.
func (t *Transport) SrcPort() uint16 { return t.tx.sock.port }

// Send implements transport.Transport. After the netdev is gone, or the socket was destroyed, it
// returns hca.ErrIO.
func (t *Transport) Send(pkts []transport.Packet) (int, error) { return t.tx.send(pkts) }

// Limits implements transport.Transport.
func (t *Transport) Limits() transport.Limits { return t.tx.limits() }

// TrainsRefused returns why the transport sends each datagram as a message of its own, or nil
// while it sends trains. Either the kernel is older than 4.18, or the kernel or the NIC cannot
// cut trains (EIO).
func (t *Transport) TrainsRefused() error {
	if why := t.tx.untrained.Load(); why != nil {
		return *why
	}
	return nil
}

// WaitWritable implements transport.Transport.
func (t *Transport) WaitWritable(ctx context.Context) error { return t.tx.waitWritable(ctx) }

// Blocked implements transport.Transport. It also counts packets that a queue below
// refused, and those for which the kernel's neighbour table had no room: the error is
// the same.
func (t *Transport) Blocked() uint64 {
	return t.tx.counts.full.Load() + t.tx.counts.drops[dropNoBuffers].Load()
}

// SendBuf returns the size of the send buffer in bytes, and the requested size. The system
// limits the size for a process without CAP_NET_ADMIN in the initial user namespace.
func (t *Transport) SendBuf() (size, asked int, err error) {
	cerr := t.tx.sock.raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	})
	// The kernel doubles the size.
	return size / 2, t.sendBuf, errors.Join(cerr, os.NewSyscallError("getsockopt SO_SNDBUF", err))
}

// Recv implements transport.Transport. After the netdev is gone it blocks until
// Close. It returns hca.ErrIO after the socket was destroyed.
func (t *Transport) Recv(pkts []transport.Packet) (int, error) { return t.rx.recv(pkts) }

// Interrupt implements transport.Transport.
func (t *Transport) Interrupt() { t.rx.interrupt() }

// State implements transport.Transport.
func (t *Transport) State() transport.State { return t.watch.State() }

// WaitChange implements transport.Transport.
func (t *Transport) WaitChange(ctx context.Context) (transport.State, error) {
	return t.watch.WaitChange(ctx)
}

// Counters implements transport.Transport.
func (t *Transport) Counters() []hca.Counter {
	return append(t.tx.counters(), t.rx.counters()...)
}

// Close implements transport.Transport; it also undoes an Open that failed half way.
// Every caller waits until the transport is closed.
func (t *Transport) Close() error {
	t.closing.Do(func() { t.closed = t.close() })
	return t.closed
}

func (t *Transport) close() error {
	var errs []error
	if t.tx != nil {
		errs = append(errs, t.tx.sock.file.Close())
	}
	if t.rx != nil {
		t.rx.close(&errs)
	}
	if t.lane > 0 {
		return errors.Join(errs...)
	}
	if t.paths != nil {
		t.paths.close()
	}
	t.gates.close()
	if t.groups != nil {
		errs = append(errs, t.groups.close())
	}
	if t.watch != nil {
		t.watch.Close()
	}
	return errors.Join(errs...)
}
