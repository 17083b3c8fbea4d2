package udp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/soft/wire"
)

// Config says where to open a transport.
type Config struct {
	Netdev string // of the calling thread's network namespace
	// Reserve keeps the port bound after the transport is closed; nil: the port is
	// free then.
	Reserve *Reserve
	RecvBuf int // receive buffer of the socket, bytes; 8 MiB when zero
	SendBuf int // send buffer of the socket, bytes; 128 MiB when zero
}

// Transport is a [wire.Transport] on a netdev.
type Transport struct {
	srcPort uint16
	tx      *sender
	rx      *receiver
	groups  *memberships
	watch   *watcher
	closing sync.Once
	closed  error // what closing it brought
}

var _ wire.Transport = (*Transport)(nil)

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
	receiver := openReceiver
	if cfg.Reserve != nil {
		receiver = cfg.Reserve.take
	}
	recv, err := receiver(now.Index, cfg.RecvBuf)
	if err != nil {
		return err
	}
	t.rx = newReceiver(recv, cfg.Reserve)
	send, port, err := openSender(now.Index, cfg.SendBuf, sourceFor(now.MAC))
	if err != nil {
		return err
	}
	t.tx, t.srcPort = newSender(send, now.Index, t.watch), port
	t.groups, err = newMemberships(now.Index)
	return err
}

// SrcPort implements wire.Transport.
func (t *Transport) SrcPort() uint16 { return t.srcPort }

// Send implements wire.Transport. After the netdev is gone it returns
// hca.ErrIO.
func (t *Transport) Send(pkts []wire.Packet) (int, error) { return t.tx.send(pkts) }

// WaitWritable implements wire.Transport.
func (t *Transport) WaitWritable(ctx context.Context) error { return t.tx.waitWritable(ctx) }

// Blocked implements wire.Transport: packets that a queue below refused count as
// well. So do those for which the kernel's neighbour table has no room, since the
// error is the same.
func (t *Transport) Blocked() uint64 {
	return t.tx.counts.full.Load() + t.tx.counts.drops[dropNoBuffers].Load()
}

// Recv implements wire.Transport. After the netdev is gone it blocks until
// Close.
func (t *Transport) Recv(pkts []wire.Packet) (int, error) { return t.rx.recv(pkts) }

// State implements wire.Transport.
func (t *Transport) State() wire.State { return t.watch.State() }

// WaitChange implements wire.Transport.
func (t *Transport) WaitChange(ctx context.Context) (wire.State, error) {
	return t.watch.WaitChange(ctx)
}

// Counters implements wire.Transport.
func (t *Transport) Counters() []hca.Counter {
	return append(t.tx.counters(), t.rx.counters()...)
}

// Close implements wire.Transport; it also undoes an Open that failed half way.
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
