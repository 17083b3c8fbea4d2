package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ReuseportSpec is the data of a [Reuseport].
type ReuseportSpec struct {
	Sockets int // the largest number of sockets in the group
	QPNs    int // the largest number of QPNs
}

// Pick is what the program has decided about a datagram.
type Pick int

// Decisions. The first two give the datagram to a socket, the others drop it.
const (
	Selected   Pick = iota // to the socket of its QPN
	ToFirst                // to the multicast QPN, but not to a group of IP: to socket 0
	TooShort               // no BTH
	UnknownQPN             // no socket has its QPN
	NoSocket               // the socket of its QPN is closed
	NumPick
)

// ReuseportCounts are what the program has counted since it was loaded.
type ReuseportCounts struct{ Picks [NumPick]uint64 }

// ErrFull means that a group has no room for another socket or QPN.
var ErrFull = errors.New("the SO_REUSEPORT group is full")

// Reuseport selects the socket of a SO_REUSEPORT group for each RoCEv2 datagram, by its
// destination QPN.
//
// The maps may be shared by several processes, each with its own sockets: one process
// loads the program and passes the descriptors of [Reuseport.Files] to the others, which
// call [ShareReuseport]. The kernel removes a closed socket by itself; the QPNs of a process
// that was killed stay until another one sets or removes them, and their datagrams are
// dropped as NoSocket.
type Reuseport struct {
	prog                  *ebpf.Program // nil: another process has loaded it
	qpns, sockets, counts *ebpf.Map
	size                  int // of sockets
}

// NewReuseport loads the program. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func NewReuseport(spec ReuseportSpec) (*Reuseport, error) {
	elf, err := loadReuseport()
	if err != nil {
		return nil, err
	}
	elf.Maps["sockets"].MaxEntries = uint32(spec.Sockets)
	elf.Maps["qpns"].MaxEntries = uint32(spec.QPNs)
	var o reuseportObjects
	if err := load("reuseport", elf, &o); err != nil {
		return nil, err
	}
	return &Reuseport{prog: o.Reuseport, qpns: o.Qpns, sockets: o.Sockets, counts: o.Counts, size: spec.Sockets}, nil
}

// FD returns the descriptor of the program for SO_ATTACH_REUSEPORT_EBPF, which is valid
// until Close. The group to which it is attached keeps the program. It is -1 if another
// process has loaded the program.
func (r *Reuseport) FD() int {
	if r.prog == nil {
		return -1
	}
	return r.prog.FD()
}

// Attach makes the program decide for the group of a socket. Any socket of the group will do.
func (r *Reuseport) Attach(socket int) error {
	err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, r.FD())
	if err != nil {
		return fmt.Errorf("attach an eBPF program to a SO_REUSEPORT group: %w", classify(os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_EBPF", err)))
	}
	return nil
}

// AddSocket gives a socket, which must be bound with SO_REUSEPORT, a free index. The first
// socket of a group gets 0.
func (r *Reuseport) AddSocket(socket int) (index int, err error) {
	for index = range r.size {
		err = r.sockets.Update(uint32(index), uint64(socket), ebpf.UpdateNoExist)
		if !errors.Is(err, ebpf.ErrKeyExist) {
			break
		}
	}
	if errors.Is(err, ebpf.ErrKeyExist) {
		err = ErrFull
	}
	if err != nil {
		return 0, fmt.Errorf("add a socket to a SO_REUSEPORT group: %w", classify(err))
	}
	return index, nil
}

// RemoveSocket frees an index. Closing the socket does the same.
func (r *Reuseport) RemoveSocket(index int) error {
	if err := ignoreMissing(r.sockets.Delete(uint32(index))); err != nil {
		return fmt.Errorf("remove socket %d from a SO_REUSEPORT group: %w", index, classify(err))
	}
	return nil
}

// SetQPN gives the datagrams to a QPN to the socket at an index.
func (r *Reuseport) SetQPN(qpn uint32, index int) error {
	err := r.qpns.Put(qpn, uint32(index))
	if errors.Is(err, unix.E2BIG) {
		err = ErrFull
	}
	if err != nil {
		return fmt.Errorf("give QPN %#x to socket %d: %w", qpn, index, classify(err))
	}
	return nil
}

// RemoveQPN makes the program drop datagrams to a QPN. Idempotent.
func (r *Reuseport) RemoveQPN(qpn uint32) error {
	if err := ignoreMissing(r.qpns.Delete(qpn)); err != nil {
		return fmt.Errorf("remove QPN %#x: %w", qpn, classify(err))
	}
	return nil
}

// QPNs returns the index of the socket of each QPN.
func (r *Reuseport) QPNs() (map[uint32]int, error) {
	out := map[uint32]int{}
	var qpn, index uint32
	all := r.qpns.Iterate()
	for all.Next(&qpn, &index) {
		out[qpn] = int(index)
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("list the QPNs of a SO_REUSEPORT group: %w", classify(err))
	}
	return out, nil
}

// Counts returns the counts of the group.
func (r *Reuseport) Counts() (out ReuseportCounts, err error) {
	sum, err := readCounts(r.counts, func(sum, cpu *reuseportReuseportCounts) {
		addTo(sum.Verdicts[:], cpu.Verdicts[:])
	})
	return ReuseportCounts{Picks: sum.Verdicts}, err
}

// Files are the descriptors of the maps.
type Files struct{ QPNs, Sockets, Counts int }

// Files returns the descriptors of the maps, which are valid until Close.
func (r *Reuseport) Files() Files {
	return Files{QPNs: r.qpns.FD(), Sockets: r.sockets.FD(), Counts: r.counts.FD()}
}

// ShareReuseport uses the maps that another process has created. It takes the descriptors
// over, and closes them even if it fails.
func ShareReuseport(files Files) (*Reuseport, error) {
	var maps [3]*ebpf.Map
	var errs []error
	for i, fd := range []int{files.QPNs, files.Sockets, files.Counts} {
		m, err := ebpf.NewMapFromFD(fd)
		if err != nil {
			errs = append(errs, err)
		}
		maps[i] = m
	}
	r := &Reuseport{qpns: maps[0], sockets: maps[1], counts: maps[2]}
	if err := errors.Join(errs...); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("use the maps of a SO_REUSEPORT group: %w", classify(err))
	}
	r.size = int(r.sockets.MaxEntries())
	return r, nil
}

// Close releases the program and the maps. Idempotent.
func (r *Reuseport) Close() error {
	if err := errors.Join(r.prog.Close(), r.qpns.Close(), r.sockets.Close(), r.counts.Close()); err != nil {
		return fmt.Errorf("close an eBPF program: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
