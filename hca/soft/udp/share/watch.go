package share

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp/holders"
)

// lookEvery is the interval at which a member looks for strangers and attaches the program
// again, because any socket of the group can replace it.
const lookEvery = time.Second

// watchDir reports, as reads, that a registration has changed or its daemon has ended.
func watchDir(r *registry) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, r.path("."), unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_DELETE); err != nil {
		_ = changes.Close()
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return changes, nil
}

// watch follows the group until the membership ends.
func (m *Membership) watch() {
	buf := make([]byte, 4096)
	guarded := time.Now()
	for {
		_ = m.changes.SetReadDeadline(time.Now().Add(lookEvery))
		_, err := m.changes.Read(buf)
		select {
		case <-m.stop:
			return
		default:
		}
		if errors.Is(err, os.ErrClosed) {
			return
		}
		live, err := m.registry.list()
		if err != nil {
			continue
		}
		m.follow(m.registry.withRemoved(live, m.known))
		if time.Since(guarded) >= lookEvery {
			m.guard(m.known)
			guarded = time.Now()
		}
	}
}

// follow adopts the source ports of the living daemons.
func (m *Membership) follow(live []registration) {
	m.known = live
	var ports []uint16
	for i := range live {
		ports = append(ports, live[i].source)
	}
	slices.Sort(ports)
	if slices.Equal(ports, m.Ports()) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.filter == nil || m.filter(ports) == nil {
		m.ports.Store(&ports)
	}
}

// guard attaches the program again and looks for strangers. A daemon that joins or exits has a
// socket without a registration for a moment, so only a socket that is found twice is a stranger.
func (m *Membership) guard(live []registration) {
	_ = m.attach() // fails if memory is exhausted, or if the socket was destroyed, which recv reports
	found, err := m.unregistered(live)
	if err != nil {
		return
	}
	twice := slices.DeleteFunc(slices.Clone(found), func(inode uint64) bool { return !slices.Contains(m.found, inode) })
	m.found = found
	names := holders.Processes(twice)
	if len(names) == 0 && len(twice) > 0 {
		names = []string{"a process that cannot be seen from here ('ss -ulpn sport = :4791' names it to root)"}
	}
	m.strangers.Store(&names)
}

// unregistered returns the inodes of the sockets on the port that no daemon has registered.
func (m *Membership) unregistered(live []registration) (inodes []uint64, err error) {
	inodes, err = m.sockets.List(m.port, m.index)
	registered := func(inode uint64) bool {
		return slices.ContainsFunc(live, func(r registration) bool { return r.inode == inode })
	}
	return slices.DeleteFunc(inodes, registered), err
}

// occupied reports whether there are unregistered sockets, other than those of a daemon that is
// just ending. An error must not be taken for no: if those are of a daemon whose registration was
// removed, binding would succeed, and the two would replace each other's program forever.
func (m *Membership) occupied(live []registration) (bool, error) {
	for until := time.Now().Add(leaveLimit); time.Now().Before(until); time.Sleep(lockPause) {
		if found, err := m.unregistered(live); err != nil || len(found) == 0 {
			return false, err
		}
	}
	return true, nil
}
