package bpf

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// MaxQueues is the largest number of queues of a [Programs.Steering] program.
const MaxQueues = 1 << (steerings - 1)

// steerings is the number of steering programs: one for each power of two up to MaxQueues.
const steerings = 4

// Errors of [Programs].
var (
	// ErrNotLoaded is the error of nil Programs.
	ErrNotLoaded = errors.New("the daemon loads eBPF programs only at its start, " +
		"and its configuration used none then; restart the daemon")
	// ErrNoFilter means that all filters are in use.
	ErrNoFilter = errors.New("all eBPF filters that the daemon loaded at its start are in use; " +
		"restart the daemon to load more")
)

// Programs are loaded programs for any number of TAPs. Steering programs have no state, so all TAPs
// with the same number of queues use the same one. A filter has counts, so each TAP has one of its
// own: a few instructions that store its slot in the maps and continue in the program that all
// filters share. All methods may be called from any goroutine. Programs are never unloaded: the
// kernel does that when the process has exited and no TAP uses them.
type Programs struct {
	err       error // why there are none
	steerings []int // descriptors, by the logarithm of the number of queues
	filters   []int // descriptors, by slot
	cpus      int
	counts    []filterFilterCounts // mapped: an element for each CPU of each slot
	waiting   []filterFilterWait   // mapped: an element for each slot
	clock     clock

	mu   sync.Mutex // guards free
	free []int      // slots that no Filter uses
}

// The descriptors of loaded programs belong, in this order, to the maps counts and waiting, the map by
// which filters find their shared program, the steering programs, and the filters.
const numMaps = 3

// Load loads the steering programs and a number of filters. It returns their descriptors, for Open,
// perhaps in the program that this process executes next. Errors: ErrNotPermitted, ErrNotSupported,
// the verifier's.
func Load(filters int) (fds []int, err error) {
	fds, err = loadMaps(filters)
	for i := 0; i < steerings && err == nil; i++ {
		fds, err = loadSteering(fds, 1<<i)
	}
	for slot := 0; slot < filters && err == nil; slot++ {
		fds, err = loadEntry(fds, slot)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	return fds, nil
}

// Unavailable returns empty Programs, whose methods return err.
func Unavailable(err error) *Programs { return &Programs{err: err} }

// Open returns the programs with the descriptors of Load, which it owns even after an error. It
// needs no capability and makes no bpf(2) call, so it works where that call is denied.
func Open(fds []int) (*Programs, error) {
	if len(fds) <= numMaps+steerings {
		return nil, fmt.Errorf("open eBPF programs: %d descriptors are too few", len(fds))
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	p := &Programs{steerings: fds[numMaps : numMaps+steerings], filters: fds[numMaps+steerings:]}
	var err error
	if p.cpus, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	if p.counts, err = mapped[filterFilterCounts](fds[0], len(p.filters)*p.cpus); err != nil {
		return nil, err
	}
	if p.waiting, err = mapped[filterFilterWait](fds[1], len(p.filters)); err != nil {
		return nil, err
	}
	for slot := range p.filters {
		p.free = append(p.free, slot)
	}
	p.clock, err = newClock(monotonic)
	return p, err
}

// loadMaps loads the program that filters share, and its maps. It returns the descriptors of the maps.
func loadMaps(filters int) (fds []int, err error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	spec, err := loadFilter()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["cpus"].Set(uint32(cpus)); err != nil {
		return nil, fmt.Errorf("set the number of CPUs to %d: %w", cpus, err)
	}
	spec.Maps["counts"].MaxEntries, spec.Maps["waiting"].MaxEntries = uint32(filters*cpus), uint32(filters)
	var shared filterObjects
	if err := load("filter", spec, &shared); err != nil {
		return nil, err
	}
	defer shared.Close()
	calls, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "filter_calls", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: shared.Filter}},
	})
	if err != nil {
		return nil, fmt.Errorf("create the map of the eBPF filters: %w", classify(err))
	}
	defer calls.Close()
	for _, m := range []*ebpf.Map{shared.Counts, shared.Waiting, calls} {
		if fds, err = appendDuplicate(fds, m.FD()); err != nil {
			return fds, err
		}
	}
	return fds, nil
}

// loadEntry loads the filter of a slot, and appends its descriptor. If the tail call fails, it passes the whole
// frame: the kernel empties the map when this process exits, and the TAP keeps the program until another
// replaces it.
func loadEntry(fds []int, slot int) ([]int, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "filter_entry", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, int32(slot)),
			asm.StoreMem(asm.R1, offsetCB, asm.R2, asm.Word),
			asm.LoadMapPtr(asm.R2, fds[numMaps-1]),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, math.MaxInt32),
			asm.Return(),
		},
	})
	if err != nil {
		return fds, fmt.Errorf("load the eBPF filter of slot %d: %w", slot, classify(err))
	}
	defer prog.Close()
	return appendDuplicate(fds, prog.FD())
}

// offsetCB is the offset of cb in struct __sk_buff (linux/bpf.h).
const offsetCB = 48

// loadSteering loads a steering program, and appends its descriptor.
func loadSteering(fds []int, queues uint32) ([]int, error) {
	spec, err := loadSteer()
	if err != nil {
		return fds, err
	}
	if err := spec.Variables["queues"].Set(queues); err != nil {
		return fds, fmt.Errorf("set the number of queues to %d: %w", queues, err)
	}
	var loaded steerObjects
	if err := load("steer", spec, &loaded); err != nil {
		return fds, err
	}
	defer loaded.Close()
	return appendDuplicate(fds, loaded.Steer.FD())
}

// mapped returns the elements of a map as memory.
func mapped[T any](fd, n int) ([]T, error) {
	var element T
	data, err := unix.Mmap(fd, 0, n*int(unsafe.Sizeof(element)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap an eBPF map", err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&data[0])), n), nil
}

// appendDuplicate appends a duplicate of a descriptor, unless there is an error.
func appendDuplicate(fds []int, fd int) ([]int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fds, os.NewSyscallError("duplicate a descriptor", err)
	}
	return append(fds, fd), nil
}

// Steering returns the descriptor of the program for TUNSETSTEERINGEBPF that spreads flows over the
// first queues of a TAP. It belongs to p.
func (p *Programs) Steering(queues int) (fd int, err error) {
	switch {
	case p == nil:
		return -1, ErrNotLoaded
	case p.err != nil:
		return -1, p.err
	case queues < 1 || queues > MaxQueues || queues&(queues-1) != 0:
		return -1, fmt.Errorf("no steering program for %d queues", queues)
	}
	return p.steerings[bits.Len(uint(queues))-1], nil
}

// Filter returns a filter that is not in use. Its counts are zero.
func (p *Programs) Filter() (*Filter, error) {
	switch {
	case p == nil:
		return nil, ErrNotLoaded
	case p.err != nil:
		return nil, p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return nil, ErrNoFilter
	}
	slot := p.free[0]
	p.free = p.free[1:]
	f := &Filter{of: p, slot: slot}
	f.reset()
	return f, nil
}
