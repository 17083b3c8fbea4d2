package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/udp/holders"
	"ipoibd/link/ethtool"
)

// SlotBits is how many leading bits of a QPN are the slot of its daemon.
const SlotBits = 6

// NumSlots is how many daemons can share a port.
const NumSlots = 1 << SlotBits

const slotQPNs = 1 << (24 - SlotBits) // QPNs of a slot

// Nobody is the user that owns the receiving sockets if the daemon may set it. This user
// has no processes: its number is above those that systemd and container runtimes assign (up to
// 2^31-1). 65535 is unsuitable, although 16-bit system calls use it for errors (chown(2)),
// because Kubernetes runs processes as that user.
const Nobody = 1<<32 - 4791

// featureJoins is the feature of a netdev that joins received datagrams of one flow for any
// socket, even for one that has not requested trains (NETIF_F_GRO_FRAGLIST).
const featureJoins = "rx-gro-list"

var (
	// ErrNotJoined means that a daemon could not join the group. That may succeed later.
	ErrNotJoined = errors.New("cannot join the daemons that share the port")
	// ErrTaken means that a socket that no daemon has registered is bound to the port.
	ErrTaken = errors.New("the port that daemons share is taken")
)

// RefusedError means that the kernel refuses to load the program, or to list sockets, so the
// port cannot be shared.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Config configures the groups of a daemon.
type Config struct {
	Dir    string // of the registrations, for all netdevs; it is created if it is missing
	Kernel Kernel
}

// Kernel has the calls of the kernel that need CAP_BPF. They return descriptors that the
// caller owns.
type Kernel struct {
	NewSockets func() (sockets int, err error)            // creates a map of NumSlots sockets
	Program    func(sockets int) (program int, err error) // loads the program that selects one
	Put        func(sockets, slot, socket int) error      // makes the program select a socket
}

// Membership is the part of a daemon in a group of daemons that share a port on a netdev. Only
// one goroutine may call Join, Enlist, Register and Close, in this order; the other methods may be
// called from any goroutine after Register.
type Membership struct {
	kernel   Kernel
	port     uint16
	index    int    // of the netdev
	slot     int    // of this daemon
	user     uint32 // of the receiving sockets
	first    bool   // the group was empty when this daemon joined
	joined   bool   // the netdev joins received datagrams
	registry *registry
	lock     *os.File // of the registry, until Register has returned
	file     *os.File // the registration
	group    int      // descriptor of the map
	program  int      // descriptor
	recv     int      // descriptor of the receiving socket, which the caller owns
	listener *net.UnixListener
	changes  *os.File // inotify of the directory
	sockets  *holders.Lister

	ports     atomic.Pointer[[]uint16] // source ports of all daemons
	strangers atomic.Pointer[[]string]
	stop      chan struct{}
	loops     sync.WaitGroup

	known []registration // as the watching goroutine last saw them
	found []uint64       // unregistered sockets at that time

	mu     sync.Mutex
	filter func(ports []uint16) error // see Filter
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

// Join claims a slot in the group of a port on the netdev with this index, and gets the map and
// the program. Until Register or Close no other daemon can join. Join waits at most some
// seconds for daemons that are joining or exiting, and for one that sends the map. Errors:
// ErrNotJoined, ErrTaken, a *RefusedError, and the system's errors.
func Join(cfg *Config, index int, port uint16) (m *Membership, err error) {
	m = &Membership{kernel: cfg.Kernel, port: port, index: index, group: -1, program: -1, recv: -1, stop: make(chan struct{})}
	m.ports.Store(new([]uint16))
	m.strangers.Store(new([]string))
	if err := m.enter(cfg.Dir); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Membership) enter(dir string) (err error) {
	if m.registry, err = openRegistry(dir, m.index); err != nil {
		return err
	}
	if m.lock, err = m.registry.lock(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotJoined, err)
	}
	if m.sockets, err = holders.Open(); err != nil {
		return err
	}
	if m.slot, m.file, err = m.registry.claim(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotJoined, err)
	}
	// Other daemons may leave meanwhile, even all of them at once if another process has destroyed
	// their sockets. Then those that are still registered do not answer.
	for until := time.Now().Add(leaveLimit); ; time.Sleep(lockPause) {
		if err = m.meet(); !errors.Is(err, ErrNotJoined) || time.Now().After(until) {
			break
		}
	}
	if err != nil {
		return err
	}
	if m.program, err = m.kernel.Program(m.group); err != nil {
		return &RefusedError{err}
	}
	return nil
}

// meet gets the map from a registered daemon, or creates it if there is none.
func (m *Membership) meet() error {
	others, err := m.registry.list()
	if err != nil {
		return err
	}
	switch taken, err := m.occupied(others); {
	case err != nil:
		return &RefusedError{err}
	case taken:
		return ErrTaken
	}
	m.user, m.first = Nobody, len(others) == 0
	if !m.first {
		m.user = others[0].user
		m.group, err = m.registry.fetchAny(others)
	} else if m.group, err = m.kernel.NewSockets(); err != nil {
		err = &RefusedError{err}
	}
	return err
}

// Enlist makes a receiving socket join the group when it is bound. The socket must not receive
// anything before Filter.
func (m *Membership) Enlist(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_REUSEPORT", err)
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

// Register makes the program select the receiving socket, which was enlisted and is bound. It
// makes the membership known to the other daemons, with the port of the sending socket, and
// starts the goroutines of the membership. The caller owns the receiving socket, and must not
// close it before Close has returned. The name is that of the netdev.
func (m *Membership) Register(netdev string, recv int, source uint16) (err error) {
	defer func() {
		_ = m.lock.Close()
		m.lock = nil
	}()
	m.recv = recv
	features, _ := ethtool.Active(recv, netdev) // a driver need not support ethtool
	m.joined = slices.Contains(features, featureJoins)
	if err := m.attach(); err != nil {
		return err
	}
	if err := m.kernel.Put(m.group, m.slot, recv); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(recv, &st); err != nil {
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
	return m.begin()
}

// begin adopts the source ports of the living daemons, and starts the goroutines of the membership.
func (m *Membership) begin() error {
	live, err := m.registry.list()
	if err != nil {
		return err
	}
	m.follow(live)
	m.loops.Go(func() { serve(m.listener, m.group) })
	m.loops.Go(m.watch)
	return nil
}

// attach attaches the program to the group.
func (m *Membership) attach() error {
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_EBPF",
		unix.SetsockoptInt(m.recv, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, m.program))
}

// Filter sets the function that makes the receiving socket accept datagrams of this host from
// the given source ports only. It is called with Ports at once, whose error Filter returns, and
// with the new ones whenever they change; then Ports changes only if it succeeds. After
// Filter(nil) it is not called any more.
func (m *Membership) Filter(accept func(ports []uint16) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filter = accept
	if accept == nil {
		return nil
	}
	return accept(m.Ports())
}

// Close ends the membership, and waits for its goroutines. It releases the registration before the
// caller closes the sockets, so that the other daemons no longer trust the source port, but after
// the listener: its Close removes a name that belongs to the next owner of the slot from then on.
func (m *Membership) Close() error {
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
	for _, fd := range []int{m.group, m.program} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if m.sockets != nil {
		m.sockets.Close()
	}
	if m.lock != nil {
		errs = append(errs, m.lock.Close())
	}
	if m.registry != nil {
		errs = append(errs, m.registry.close())
	}
	return errors.Join(errs...)
}
