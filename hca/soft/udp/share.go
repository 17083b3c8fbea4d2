package udp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/ethtool"
)

// SlotBits is how many leading bits of a QPN are the slot of its daemon.
const SlotBits = 6

const (
	numSlots = 1 << SlotBits
	slotQPNs = 1 << (24 - SlotBits) // QPNs of a slot
)

// Nobody is the user that owns the receiving sockets if the daemon may set it. This user
// has no processes: its number is above those that systemd and container runtimes assign (up to
// 2^31-1). 65535 is unsuitable, although 16-bit system calls use it for errors (chown(2)),
// because Kubernetes runs processes as that user.
const Nobody = 1<<32 - 4791

// sharerMark is the mark of the packets of daemons that share the port. Their receiving sockets
// require it of datagrams of this host. A mark is not part of a packet on the wire. It is not
// the mark of an identification (package bpf).
const sharerMark = 0x2001

// featureJoins is the feature of a netdev that joins received datagrams of one flow for any
// socket, even for one that has not requested trains (NETIF_F_GRO_FRAGLIST).
const featureJoins = "rx-gro-list"

// ErrNotJoined means that the transport could not join the daemons that share the port. That
// may succeed later.
var ErrNotJoined = errors.New("cannot join the daemons that share the port")

// Sharing configures a port on a netdev that several daemons of one user share.
type Sharing struct {
	Dir    string // of the registrations; it is created if it is missing
	Kernel Kernel
}

// Kernel has the calls of the kernel that need CAP_BPF. They return descriptors that the
// caller owns.
type Kernel struct {
	NewSockets func() (sockets int, err error)            // creates a map of 1<<SlotBits sockets
	Program    func(sockets int) (program int, err error) // loads the program that selects one
	Put        func(sockets, slot, socket int) error      // makes the program select a socket
}

// Membership is the part of a transport in a group of daemons that share the port.
type Membership struct {
	slot     int
	index    int    // of the netdev
	user     uint32 // of the receiving sockets
	first    bool   // the group was empty when this daemon joined
	joined   bool   // the netdev joins received datagrams
	registry *registry
	file     *os.File // the registration
	sockets  int      // descriptor of the map
	program  int      // descriptor
	recv     int      // descriptor of the receiving socket, which the pair owns
	listener *net.UnixListener
	changes  *os.File // inotify of the directory
	diag     *diag

	ports     atomic.Pointer[[]uint16] // source ports of all daemons
	strangers atomic.Pointer[[]string]
	stop      chan struct{}
	loops     sync.WaitGroup

	known []registration // as the watching goroutine last saw them
	found []uint64       // unregistered sockets at that time

	mu     sync.Mutex
	admits bool // the receiving socket is in use
}

// QPNs returns the QPNs of this daemon.
func (m *Membership) QPNs() (first, last hca.QPN) {
	return hca.QPN(m.slot * slotQPNs), hca.QPN((m.slot+1)*slotQPNs - 1)
}

// Ports returns the source ports of all daemons that share the port, this one included. The
// caller must not change the slice. It neither blocks nor allocates.
func (m *Membership) Ports() []uint16 { return *m.ports.Load() }

// Strangers names the processes with a socket in the group, or on its port, that no daemon has
// registered.
func (m *Membership) Strangers() []string { return *m.strangers.Load() }

// Open reports whether any process of the daemon's user can join the group, because the
// daemon that created it had no CAP_CHOWN.
func (m *Membership) Open() bool { return m.user != Nobody }

// Joined reports whether the underlay joined received datagrams of one flow at the time when this
// daemon joined the group. A datagram is lost if the kernel has joined it to one for another
// daemon.
func (m *Membership) Joined() bool { return m.joined }

// joinGroup opens the sockets of a netdev as a member of its group. The error is a
// *cannotShare if the kernel refuses the program.
func joinGroup(cfg *Config, index int, first uint16) (p *pair, err error) {
	m := &Membership{index: index, sockets: -1, program: -1, recv: -1, stop: make(chan struct{})}
	m.ports.Store(new([]uint16))
	m.strangers.Store(new([]string))
	p = &pair{recv: bound{fd: -1}, send: bound{fd: -1}, member: m}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	if m.registry, err = openRegistry(cfg.Share.Dir, index); err != nil {
		return nil, err
	}
	lock, err := m.registry.lock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJoined, err)
	}
	defer lock.Close()
	if err := m.enter(&cfg.Share.Kernel); err != nil {
		return nil, err
	}
	if p.recv, err = openReceiver(index, cfg, m, 0); err != nil {
		return nil, err
	}
	m.recv = p.recv.fd
	features, _ := ethtool.Active(m.recv, cfg.Netdev) // a driver need not support ethtool
	m.joined = slices.Contains(features, featureJoins)
	if err := m.attach(); err != nil {
		return nil, err
	}
	if err := cfg.Share.Kernel.Put(m.sockets, m.slot, m.recv); err != nil {
		return nil, err
	}
	if p.send, err = openSender(index, cfg.SendBuf, first, 1, true); err != nil {
		return nil, err
	}
	return p, m.register(p.send.port)
}

// cannotShare means that the kernel refuses to load the program, or to list sockets.
type cannotShare struct{ error }

func (e *cannotShare) Unwrap() error { return e.error }

// enter claims a slot, and gets the map and the program.
func (m *Membership) enter(kernel *Kernel) (err error) {
	if m.diag, err = newDiag(); err != nil {
		return err
	}
	others, err := m.registry.list()
	if err != nil {
		return err
	}
	switch taken, err := m.diag.occupied(m.index, others); {
	case err != nil:
		return &cannotShare{err}
	case taken:
		return takenBy("/proc")
	}
	if m.slot, m.file, err = m.registry.claim(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotJoined, err)
	}
	m.user, m.first = Nobody, len(others) == 0
	if !m.first {
		m.user = others[0].user
		m.sockets, err = m.registry.fetchAny(others)
	} else if m.sockets, err = kernel.NewSockets(); err != nil {
		err = &cannotShare{err}
	}
	if err != nil {
		return err
	}
	if m.program, err = kernel.Program(m.sockets); err != nil {
		return &cannotShare{err}
	}
	return nil
}

// makeMember makes a socket join the group when it is bound.
func (m *Membership) makeMember(fd int) error {
	if err := setOptions(fd, []option{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}}); err != nil {
		return err
	}
	own := uint32(os.Geteuid())
	if m.user == own {
		return nil
	}
	err := unix.Fchown(fd, int(m.user), -1)
	switch {
	case err == nil:
		return nil
	case m.first:
		m.user = own
		return nil
	}
	return fmt.Errorf("change the owner of the socket to user %d, like the other daemons that share the port: %w", m.user, err)
}

// attach attaches the program to the group.
func (m *Membership) attach() error {
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_EBPF",
		unix.SetsockoptInt(m.recv, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, m.program))
}

// register makes the membership known to the other daemons, and starts its goroutines.
func (m *Membership) register(source uint16) (err error) {
	var st unix.Stat_t
	if err := unix.Fstat(m.recv, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if m.changes, err = watchDir(m.registry); err != nil {
		return err
	}
	if m.listener, err = m.registry.offer(m.slot); err != nil {
		return err
	}
	reg := registration{m.slot, source, st.Ino, m.user}
	if _, err := m.file.WriteAt(reg.encode(), 0); err != nil {
		return err
	}
	live, err := m.registry.list()
	if err != nil {
		return err
	}
	m.follow(live)
	m.loops.Go(func() { serve(m.listener, m.sockets) })
	m.loops.Go(m.watch)
	return nil
}

// admit makes the receiving socket receive; refuse makes it drop everything.
func (m *Membership) admit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.admits = true
	return admitLocal(m.recv, m.Ports())
}

func (m *Membership) refuse() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.admits = false
	return refuseAll(m.recv)
}

// close ends the membership. It releases the registration before the sockets, so that the other
// daemons no longer trust the source port, but after the listener: its Close removes a name
// that belongs to the next owner of the slot from then on.
func (m *Membership) close() error {
	var errs []error
	if m.listener != nil {
		errs = append(errs, m.listener.Close())
	}
	for _, file := range []*os.File{m.file, m.changes} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	close(m.stop)
	m.loops.Wait()
	for _, fd := range []int{m.sockets, m.program} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if m.diag != nil {
		m.diag.close()
	}
	if m.registry != nil {
		errs = append(errs, m.registry.close())
	}
	return errors.Join(errs...)
}
