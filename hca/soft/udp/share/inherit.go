package share

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp/holders"
)

// Handed describes a membership that another process of the same daemon continues. Its
// descriptors are the registration, the map, the program and the listener, in this order.
type Handed struct {
	Slot   int
	User   uint32 // of the receiving sockets
	Joined bool
}

// HandedFDs is the number of descriptors of a membership.
const HandedFDs = 4

// HandOver returns what another process needs to continue the membership, with duplicates of the
// descriptors, which the caller closes. The lock of the registration belongs to its open file, so it
// lasts until both processes have closed it.
func (m *Membership) HandOver() (h Handed, fds []int, err error) {
	listener, err := m.listener.SyscallConn()
	if err != nil {
		return h, nil, err
	}
	own := []int{int(m.file.Fd()), m.group, m.program, -1}
	var dupErr error
	err = listener.Control(func(fd uintptr) {
		own[3] = int(fd)
		for _, o := range own {
			var dup int
			if dup, dupErr = unix.FcntlInt(uintptr(o), unix.F_DUPFD_CLOEXEC, 0); dupErr != nil {
				return
			}
			fds = append(fds, dup)
		}
	})
	if err = errors.Join(err, os.NewSyscallError("duplicate a descriptor", dupErr)); err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return h, nil, err
	}
	return Handed{Slot: m.slot, User: m.user, Joined: m.joined}, fds, nil
}

// GiveUp makes Close leave the name of the listener to the process that continues the membership.
func (m *Membership) GiveUp() { m.listener.SetUnlinkOnClose(false) }

// Inherit continues the membership of another process, with its descriptors, which it owns from
// then on, and with its receiving socket, which the caller owns.
func Inherit(cfg *Config, index int, port uint16, recv int, h Handed, fds []int) (m *Membership, err error) {
	if len(fds) != HandedFDs || h.Slot < 0 || h.Slot >= NumSlots {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("slot %d with %d descriptors", h.Slot, len(fds))
	}
	m = &Membership{
		kernel: cfg.Kernel, port: port, index: index, slot: h.Slot, user: h.User, joined: h.Joined,
		file: os.NewFile(uintptr(fds[0]), "registration"), group: fds[1], program: fds[2], recv: recv,
		stop: make(chan struct{}),
	}
	m.ports.Store(new([]uint16))
	m.strangers.Store(new([]string))
	if err := m.inherit(cfg.Dir, fds[3]); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Membership) inherit(dir string, listener int) error {
	file := os.NewFile(uintptr(listener), "listener")
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		return errors.Join(fmt.Errorf("the listener is a %T", l), l.Close())
	}
	m.listener = unixListener // it does not remove its name, which was relative to the other process: see registry.offer
	if m.registry, err = openRegistry(dir, m.index); err != nil {
		return err
	}
	if m.sockets, err = holders.Open(); err != nil {
		return err
	}
	if m.changes, err = watchDir(m.registry); err != nil {
		return err
	}
	return m.begin()
}
