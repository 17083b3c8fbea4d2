package udp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Config says where to open a transport.
type Config struct {
	Netdev string // of the calling thread's network namespace
	// Reserve keeps the ports bound after the transport is closed; nil: Close frees
	// them.
	Reserve *Reserve
	RecvBuf int // receive buffer of the socket, bytes; 8 MiB when zero
	SendBuf int // send buffer of the socket, bytes; 128 MiB when zero
}

// Transport is a [transport.Transport] on a netdev.
type Transport struct {
	sendBuf int // asked for, bytes
	tx      *sender
	rx      *receiver
	groups  *memberships
	watch   *watcher
	closing sync.Once
	closed  error // of closing
}

var _ transport.Transport = (*Transport)(nil)

// Open opens a transport on a netdev, which may be down or without address.
// Errors: hca.ErrNoDevice for a netdev that is not there, a *PortTakenError for
// a port in use, what the system says otherwise.
func Open(cfg Config) (*Transport, error) {
	t := new(Transport)
	if err := t.open(cfg); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("open UDP transport on %q: %w", cfg.Netdev, err)
	}
	return t, nil
}

// open leaves what it made so far to Close where it fails.
func (t *Transport) open(cfg Config) (err error) {
	if t.watch, err = newWatcher(cfg.Netdev); err != nil {
		return err
	}
	now := t.watch.State()
	reserve := cfg.Reserve
	if reserve == nil {
		reserve = new(Reserve)
		defer reserve.Close()
	}
	recv, send, err := reserve.take(&cfg, &now)
	if err != nil {
		return err
	}
	t.sendBuf = cmp.Or(cfg.SendBuf, defaultSendBuf)
	t.rx, t.tx = newReceiver(recv, reserve), newSender(send, now.Index, t.watch)
	t.groups, err = newMemberships(now.Index)
	return err
}

// SrcPort implements transport.Transport.
func (t *Transport) SrcPort() uint16 { return t.tx.sock.port }

// Send implements transport.Transport. After the netdev is gone it returns
// hca.ErrIO.
func (t *Transport) Send(pkts []transport.Packet) (int, error) { return t.tx.send(pkts) }

// WaitWritable implements transport.Transport.
func (t *Transport) WaitWritable(ctx context.Context) error { return t.tx.waitWritable(ctx) }

// Blocked implements transport.Transport. It also counts packets that a queue below
// refused, and those for which the kernel's neighbour table had no room: the error is
// the same.
func (t *Transport) Blocked() uint64 {
	return t.tx.counts.full.Load() + t.tx.counts.drops[dropNoBuffers].Load()
}

// SendBuf returns the size of the send buffer in bytes, and the size that was asked
// for. The system limits the size for a process without CAP_NET_ADMIN in the initial
// user namespace.
func (t *Transport) SendBuf() (size, asked int, err error) {
	cerr := t.tx.sock.raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	})
	return size / 2, t.sendBuf, errors.Join(cerr, os.NewSyscallError("getsockopt SO_SNDBUF", err)) // the kernel doubles it
}

// Recv implements transport.Transport. After the netdev is gone it blocks until
// Close.
func (t *Transport) Recv(pkts []transport.Packet) (int, error) { return t.rx.recv(pkts) }

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
	if t.groups != nil {
		errs = append(errs, t.groups.close())
	}
	if t.watch != nil {
		t.watch.Close()
	}
	return errors.Join(errs...)
}
