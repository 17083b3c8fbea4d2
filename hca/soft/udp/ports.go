package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
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
	lanes   []pair // at least one
	unlaned error  // why there is one lane although Config.Lanes asks for more
}

// openPorts binds the sockets of all lanes.
func openPorts(cfg *Config, netdev *transport.State) (*ports, error) {
	p := new(ports)
	if err := p.openLane(cfg, netdev); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if cfg.Lanes > 1 {
		p.openLanes(cfg, netdev)
	}
	return p, nil
}

// openLane opens the sockets of the next lane. It leaves it to close to undo a partial success.
func (p *ports) openLane(cfg *Config, netdev *transport.State) (err error) {
	lane, lanes := len(p.lanes), max(1, cfg.Lanes)
	p.lanes = append(p.lanes, noPair)
	sockets := &p.lanes[lane]
	if sockets.recv, err = openReceiver(netdev.Index, cfg, lane); err != nil {
		return err
	}
	sockets.send, err = openSender(netdev.Index, cfg.SendBuf, laneSource(netdev.MAC, lane, lanes), lanes)
	return err
}

// close closes all sockets; p may be nil.
func (p *ports) close() error {
	if p == nil {
		return nil
	}
	var errs []error
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
	if lane > 0 {
		return admitUnicast(fd)
	}
	return admitOthers(fd)
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
	fd, err := kernel.DuplicateFD(b.fd)
	if err != nil {
		return nil, fmt.Errorf("a UDP socket: %w", err)
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
