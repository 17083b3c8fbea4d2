package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp/share"
)

// pair holds the two sockets of a lane. They are not in the runtime's poller, because each datagram
// would wake it.
type pair struct{ recv, send bound }

// noPair is a pair without sockets.
var noPair = pair{bound{fd: -1}, bound{fd: -1}}

// close closes both sockets.
func (p *pair) close() error {
	var errs []error
	for _, b := range []bound{p.recv, p.send} {
		if b.fd >= 0 {
			errs = append(errs, unix.Close(b.fd))
		}
	}
	return errors.Join(errs...)
}

// ports are the sockets of a netdev.
type ports struct {
	lanes    []pair            // at least one
	member   *share.Membership // in the group of daemons that share the port; nil: it is not shared
	unshared error             // why the port is not shared although Config.Share asks for it
	unlaned  error             // why there is one lane although Config.Lanes asks for more
}

func openPorts(cfg *Config, netdev *transport.State) (*ports, error) {
	p := new(ports)
	if cfg.Share != nil {
		member, err := share.Join(cfg.Share, netdev.Index, Port)
		_, refused := errors.AsType[*share.RefusedError](err)
		switch {
		case refused:
			p.unshared = err
		case errors.Is(err, share.ErrTaken):
			return nil, takenOn(netdev.Index)
		case err != nil:
			return nil, err
		}
		p.member = member
	}
	if err := p.open(cfg, netdev); err != nil {
		if p.unshared != nil {
			err = fmt.Errorf("%w (the port cannot be shared: %w)", err, p.unshared)
		}
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// open leaves it to close to undo a partial success.
func (p *ports) open(cfg *Config, netdev *transport.State) error {
	if err := p.openLane(cfg, netdev); err != nil {
		return err
	}
	if p.member != nil {
		first := &p.lanes[0]
		return p.member.Register(cfg.Netdev, first.recv.fd, first.send.port)
	}
	if cfg.Lanes > 1 {
		p.openLanes(cfg, netdev)
	}
	return nil
}

// openLane opens the sockets of the next lane. It leaves it to close to undo a partial success.
func (p *ports) openLane(cfg *Config, netdev *transport.State) (err error) {
	lane, lanes := len(p.lanes), max(1, cfg.Lanes)
	p.lanes = append(p.lanes, noPair)
	sockets := &p.lanes[lane]
	if sockets.recv, err = openReceiver(netdev.Index, cfg, p.member, lane); err != nil {
		return err
	}
	sockets.send, err = openSender(netdev.Index, cfg.SendBuf, laneSource(netdev.MAC, lane, lanes), lanes, p.member != nil)
	return err
}

// close ends the membership and closes all sockets; p may be nil.
func (p *ports) close() error {
	if p == nil {
		return nil
	}
	var errs []error
	if p.member != nil {
		errs = append(errs, p.member.Close())
	}
	for i := range p.lanes {
		errs = append(errs, p.lanes[i].close())
	}
	return errors.Join(errs...)
}

// intact reports whether no other process has destroyed a socket (SOCK_DESTROY of sock_diag(7)). The
// kernel detaches a destroyed socket from its netdev and from its group. Setting the filter waits
// until a destruction that has begun is complete. The sockets must not be in use.
func (p *ports) intact(index int) bool {
	for i := range p.lanes {
		for _, b := range []bound{p.lanes[i].recv, p.lanes[i].send} {
			if refuseAll(b.fd) != nil {
				return false
			}
			if at, err := unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil || at != index {
				return false
			}
		}
	}
	return true
}

// admit makes the receiving socket of a lane receive.
func (p *ports) admit(lane int) error {
	fd := p.lanes[lane].recv.fd
	switch {
	case lane > 0:
		return admitUnicast(fd)
	case p.member != nil:
		return p.member.Filter(func(ports []uint16) error { return admitLocal(fd, ports) })
	}
	return admitLocal(fd, nil)
}

// lend duplicates the descriptors of the sockets of a lane, and makes it receive. It drops the
// datagrams in the queue, which arrived before this transport was opened.
func (p *ports) lend(lane int) (recv, send *socket, err error) {
	fd := p.lanes[lane].recv.fd
	if err := empty(fd); err != nil {
		return nil, nil, err
	}
	drops, _ := socketDrops(uintptr(fd))
	return p.lendOn(lane, drops)
}

// lendOn is lend for sockets whose queued datagrams are still wanted. Drops is the kernel's count of
// drops from which the transport counts on.
func (p *ports) lendOn(lane int, drops uint32) (recv, send *socket, err error) {
	own := &p.lanes[lane]
	if send, err = own.send.duplicate(); err != nil {
		return nil, nil, err
	}
	if recv, err = own.recv.duplicate(); err != nil {
		_ = send.file.Close()
		return nil, nil, err
	}
	recv.dropped = drops
	if err = p.admit(lane); err != nil {
		return nil, nil, errors.Join(err, send.file.Close(), recv.file.Close())
	}
	return recv, send, nil
}

// duplicate returns another descriptor of the socket.
func (b bound) duplicate() (*socket, error) {
	fd, err := unix.FcntlInt(uintptr(b.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("duplicate a UDP socket", err)
	}
	return own(fd, b.ipv6, b.port)
}

// empty drops all datagrams in the queue of a socket. First it makes the socket refuse
// new ones, which a socket that has just been bound does not do yet: otherwise a flood
// could keep empty busy forever.
func empty(fd int) error {
	if err := refuseAll(fd); err != nil {
		return err
	}
	for {
		_, _, err := unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("recvfrom", err)
		}
	}
}
