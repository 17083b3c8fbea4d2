package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
	if !m.admits || admitLocal(m.recv, ports) == nil {
		m.ports.Store(&ports)
	}
}

// guard attaches the program again and looks for strangers. A daemon that joins or exits has a
// socket without a registration for a moment, so only a socket that is found twice is a stranger.
func (m *Membership) guard(live []registration) {
	_ = m.attach() // fails if memory is exhausted, or if the socket was destroyed, which recv reports
	found, err := m.diag.unregistered(m.index, live)
	if err != nil {
		return
	}
	twice := slices.DeleteFunc(slices.Clone(found), func(inode uint64) bool { return !slices.Contains(m.found, inode) })
	m.found = found
	names := holdersOf(twice)
	m.strangers.Store(&names)
}

// diag is a netlink socket that lists UDP sockets (sock_diag(7)).
type diag struct{ socket *nl.NetlinkSocket }

func newDiag() (*diag, error) {
	socket, err := nl.Subscribe(unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return &diag{socket}, nil
}

func (d *diag) close() { d.socket.Close() }

// diagRequest is a struct inet_diag_req_v2 that asks for the UDP sockets on a port.
type diagRequest struct {
	family uint8
	port   uint16
}

// Len implements nl.NetlinkRequestData.
func (*diagRequest) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r *diagRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.family, unix.IPPROTO_UDP
	binary.NativeEndian.PutUint32(b[4:], 1<<32-1) // in any state
	binary.BigEndian.PutUint16(b[8:], r.port)
	return b
}

// diagSocket is the part of struct inet_diag_msg that is used.
type diagSocket struct {
	port  uint16
	index int // of the netdev that it is bound to, or 0
	inode uint64
}

// parseDiag returns false if b is too short.
func parseDiag(b []byte) (s diagSocket, ok bool) {
	const port, index, inode, size = 4, 40, 68, 72
	if len(b) < size {
		return s, false
	}
	return diagSocket{
		port:  binary.BigEndian.Uint16(b[port:]),
		index: int(binary.NativeEndian.Uint32(b[index:])),
		inode: uint64(binary.NativeEndian.Uint32(b[inode:])),
	}, true
}

// unregistered returns the inodes of the sockets on the port that are bound to the netdev or to
// none, and that no daemon has registered.
func (d *diag) unregistered(index int, live []registration) (inodes []uint64, err error) {
	registered := map[uint64]bool{0: true} // a socket that was just closed has inode 0
	for i := range live {
		registered[live[i].inode] = true
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := d.list(family)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if s.port == Port && (s.index == 0 || s.index == index) && !registered[s.inode] {
				inodes = append(inodes, s.inode)
			}
		}
	}
	return inodes, nil
}

// occupied reports whether there are unregistered sockets, other than those of a daemon that is
// just ending. An error must not be taken for no: if those are of a daemon whose registration was
// removed, binding would succeed, and the two would replace each other's program forever.
func (d *diag) occupied(index int, live []registration) (bool, error) {
	const tries, pause = 20, 10 * time.Millisecond
	for range tries {
		if found, err := d.unregistered(index, live); err != nil || len(found) == 0 {
			return false, err
		}
		time.Sleep(pause)
	}
	return true, nil
}

// holdersOf names the processes that have the sockets with these inodes.
func holdersOf(inodes []uint64) (names []string) {
	if len(inodes) == 0 {
		return nil
	}
	links := map[string]bool{}
	for _, inode := range inodes {
		links[fmt.Sprintf("socket:[%d]", inode)] = true
	}
	if names = socketHolders("/proc", links); len(names) == 0 {
		return []string{"a process that cannot be seen from here"}
	}
	return names
}

// list returns the UDP sockets of a family on the port.
func (d *diag) list(family uint8) (sockets []diagSocket, err error) {
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: d.socket}}
	req.AddData(&diagRequest{family, Port})
	messages, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if err != nil {
		return nil, fmt.Errorf("list the UDP sockets: %w", err)
	}
	for _, b := range messages {
		if s, ok := parseDiag(b); ok {
			sockets = append(sockets, s)
		}
	}
	return sockets, nil
}
