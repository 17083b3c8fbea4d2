package bpf

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ReuseportBits is how many leading bits of a QPN are the index of the socket that gets its
// datagrams.
const ReuseportBits = 6

// NewReuseportSockets creates an empty map of the sockets of an SO_REUSEPORT group. The caller
// owns the descriptor. The kernel removes a socket from the map when it is closed.
func NewReuseportSockets() (sockets int, err error) {
	spec, err := loadReuseport()
	if err != nil {
		return -1, err
	}
	m, err := ebpf.NewMap(spec.Maps[reuseportMapSockets])
	if err != nil {
		return -1, fmt.Errorf("create a map of sockets: %w", classify(err))
	}
	defer m.Close()
	return duplicate(m.FD())
}

// LoadReuseport loads the program that selects a socket of a map, for
// SO_ATTACH_REUSEPORT_EBPF. The caller owns the descriptor.
func LoadReuseport(sockets int) (program int, err error) {
	m, err := borrow(sockets)
	if err != nil {
		return -1, err
	}
	defer m.Close()
	spec, err := loadReuseport()
	if err != nil {
		return -1, err
	}
	var loaded struct {
		Program *ebpf.Program `ebpf:"reuseport"`
	}
	if err := load("reuseport", spec, &loaded, map[string]*ebpf.Map{reuseportMapSockets: m}); err != nil {
		return -1, err
	}
	defer loaded.Program.Close()
	return duplicate(loaded.Program.FD())
}

// PutReuseportSocket makes the program select a socket for an index. The socket must be bound,
// in the group, and in no other map.
func PutReuseportSocket(sockets, index, socket int) error {
	m, err := borrow(sockets)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(uint32(index), uint64(socket)); err != nil {
		return fmt.Errorf("add a socket to the map of its group: %w", err)
	}
	return nil
}

// borrow returns a map that does not own the descriptor.
func borrow(fd int) (*ebpf.Map, error) {
	own, err := duplicate(fd)
	if err != nil {
		return nil, err
	}
	m, err := ebpf.NewMapFromFD(own)
	if err != nil {
		return nil, fmt.Errorf("use a map of sockets: %w", err)
	}
	return m, nil
}

func duplicate(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("duplicate a descriptor", err)
}
