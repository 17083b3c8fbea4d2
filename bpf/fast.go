package bpf

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Verdict is how a program of the fast path ended with a frame from the host, or with a packet from the underlay.
type Verdict int

// Verdicts, in the order of fast.h. All but FastCarried and FastLost leave the frame or packet to the daemon.
const (
	FastCarried  Verdict = iota
	FastLost             // the kernel had no memory for it
	FastClosed           // the gate was closed
	FastLength           // too short, too long, or to be cut in segments
	FastKind             // not TCP, UDP or an ICMP echo; or with options, a fragment, multicast, DHCP, or a VLAN tag
	FastStranger         // from a MAC that is not the TAP's own; no peer, one without a route, or whose next hop is not resolved
	FastOrder            // an earlier one of its flow may still be on its way through the daemon
	FastHeader           // a header that the daemon examines and counts
	FastDamaged          // a wrong checksum or ICRC, which the daemon counts
	NumVerdict
)

// The numbers of queue pairs and of peers that a process can have on the fast path.
const (
	maxGates     = 64
	maxFastPeers = 4096
)

// Errors of a [FastPath]. Without it, all frames go through the daemon.
var (
	ErrNoGate = fmt.Errorf("the fast path serves at most %d queue pairs", maxGates)
	ErrNoPeer = fmt.Errorf("the fast path serves at most %d peers", maxFastPeers)
)

// FastPath is the fast path of a process, for its netdevs of one network namespace. All methods may be called from
// any goroutine.
type FastPath struct {
	// AtNetdev and AtUnderlay are the descriptors of the programs for the egress of TAPs and the ingress of underlays, which
	// belong to the FastPath. The caller attaches them.
	AtNetdev, AtUnderlay int

	err     error         // why no programs are loaded
	qps     []fastQp      // mapped: an element for each gate
	peers   []fastPeer    // mapped: an element for each peer
	counts  []fastCounts  // mapped: an element for each gate of each CPU
	running []fastRunning // mapped: an element for each CPU
	orders  []fastOrder   // mapped: an element for each gate
	maps    fastIndexes

	attached sync.Map // indexes of netdevs

	mu        sync.Mutex // guards what follows
	freeGates []uint32
	freePeers []uint32
}

// fastIndexes are the maps by which the programs find a queue pair or a peer.
type fastIndexes struct {
	netdevs, nums, targets, sources *ebpf.Map
}

// The descriptors of a loaded fast path belong, in this order, to the programs for netdevs and underlays, the map by
// which these find the others, the mapped maps qps, peers, counts, running and orders, and the maps of fastIndexes.
const numFast = 12

// LoadFastPath loads the fast path. It returns its descriptors, for OpenFastPath, perhaps in the program that this process
// executes next. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func LoadFastPath() (fds []int, err error) {
	o, err := loadFastPath()
	if err != nil {
		return nil, err
	}
	defer o.Close()
	for _, fd := range []int{
		o.AtNetdev.FD(), o.AtUnderlay.FD(), o.Calls.FD(), o.Qps.FD(), o.Peers.FD(), o.Counts.FD(), o.Running.FD(),
		o.Orders.FD(), o.Netdevs.FD(), o.Nums.FD(), o.Targets.FD(), o.Sources.FD(),
	} {
		if fds, err = appendDuplicate(fds, fd); err != nil {
			closeAll(fds)
			return nil, err
		}
	}
	return fds, nil
}

func loadFastPath() (*fastObjects, error) {
	version, err := features.LinuxVersionCode()
	if err != nil {
		return nil, fmt.Errorf("find out the kernel's version: %w", err)
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return nil, os.NewSyscallError("uname", err)
	}
	if err := fastRefused(version, unix.ByteSliceToString(host.Version[:])); err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	spec, err := loadFast()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["crc_table"].Set(crcTable()); err != nil {
		return nil, fmt.Errorf("set the tables of the CRC: %w", err)
	}
	spec.Maps["counts"].MaxEntries, spec.Maps["running"].MaxEntries = uint32(maxGates*cpus), uint32(cpus)
	objects := new(fastObjects)
	return objects, load("fast", spec, objects)
}

// fastRefused returns why a kernel must not run the fast path although its verifier would accept it, or nil. Version is its
// LINUX_VERSION_CODE, and build its UTS_VERSION (scripts/mkcompile_h, init/Makefile).
func fastRefused(version uint32, build string) error {
	const oldest = 6<<16 | 1<<8
	switch {
	case version < oldest: // bpf_skb_adjust_room leaves a partial checksum that no longer fits the packet
		return fmt.Errorf("%w: the fast path needs Linux 6.1 or later", ErrNotSupported)
	case strings.Contains(build, "PREEMPT_RT"), strings.Contains(build, "PREEMPT_{RT"): // scratch memory and turns assume that programs on a CPU do not interrupt each other
		return fmt.Errorf("%w: the fast path does not work on a real-time kernel (PREEMPT_RT)", ErrNotSupported)
	}
	return nil
}

// crcTable returns the tables by which a CRC-32 takes sixteen bytes at a time.
func crcTable() (t [16][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := 1; i < len(t); i++ {
		for b, crc := range t[i-1] {
			t[i][b] = t[0][uint8(crc)] ^ crc>>8
		}
	}
	return t
}

// OpenFastPath returns the fast path with the descriptors of LoadFastPath, which it owns even after an error. It needs no
// capability, but bpf(2).
func OpenFastPath(fds []int) (*FastPath, error) {
	if len(fds) != numFast {
		closeAll(fds)
		return nil, fmt.Errorf("open the fast path: %d descriptors, want %d", len(fds), numFast)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	p := &FastPath{AtNetdev: fds[0], AtUnderlay: fds[1]}
	errs := make([]error, 9)
	p.qps, errs[0] = mapped[fastQp](fds[3], maxGates)
	p.peers, errs[1] = mapped[fastPeer](fds[4], maxFastPeers)
	p.counts, errs[2] = mapped[fastCounts](fds[5], maxGates*cpus)
	p.running, errs[3] = mapped[fastRunning](fds[6], cpus)
	p.orders, errs[4] = mapped[fastOrder](fds[7], maxGates)
	for i, m := range []**ebpf.Map{&p.maps.netdevs, &p.maps.nums, &p.maps.targets, &p.maps.sources} {
		*m, errs[5+i] = ebpf.NewMapFromFD(fds[8+i])
	}
	for i := range uint32(maxGates) {
		p.freeGates = append(p.freeGates, i)
	}
	for i := range uint32(maxFastPeers) {
		p.freePeers = append(p.freePeers, i)
	}
	return p, errors.Join(errs...)
}

// NoFastPath returns a fast path without programs, whose Gate returns err.
func NoFastPath(err error) *FastPath { return &FastPath{err: err, AtNetdev: -1, AtUnderlay: -1} }

// Attached notes that the program for a netdev or an underlay is attached there. Nothing is carried there before.
func (p *FastPath) Attached(index int) { p.attached.Store(index, nil) }

func (p *FastPath) isAttached(index int) bool {
	_, ok := p.attached.Load(index)
	return ok
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// take removes the first element of a list of free ones. It returns the error none if the list is empty.
func (p *FastPath) take(free *[]uint32, none error) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(*free) == 0 {
		return 0, none
	}
	slot := (*free)[0]
	*free = (*free)[1:]
	return slot, nil
}

func (p *FastPath) giveBack(free *[]uint32, slot uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*free = append(*free, slot)
}

// settle waits until no program runs that may have seen the maps as they were before. A program takes
// microseconds, unless the machine takes the processor from it.
func (p *FastPath) settle() {
	for i := range p.running {
		turns := &p.running[i].Turns
		for n := atomic.LoadUint64(turns); n&1 == 1 && n == atomic.LoadUint64(turns); {
			runtime.Gosched()
		}
	}
}
