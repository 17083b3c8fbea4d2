package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// KnownID returns the IPv4 identification in the mark of a received packet, and whether the
// mark has one.
func KnownID(mark uint32) (id uint16, known bool) {
	return uint16(mark >> 16), mark&0xffff == markKnown
}

// markKnown is in the lower half of a mark that the program has made. It is not a bit that
// other programs are known to test: Kubernetes uses 0x4000 and 0x8000, Cilium 0x0f00.
const markKnown = 0x2000

// IPIDCounts are what the program has counted since it was loaded.
type IPIDCounts struct {
	Marked uint64 // packets that were marked
	Taken  uint64 // packets that had a mark of others, which remains
	// Segments is the distribution of both by the number of datagrams that they hold.
	Segments Histogram
}

// IPID writes the IPv4 identification of RoCEv2 datagrams that a netdev receives into their
// marks.
type IPID struct {
	objects ipidObjects
	detach  func() error // nil: not attached
}

// NewIPID loads the program and attaches it to the ingress of a netdev, by its index in the
// network namespace of the calling thread: by tcx, which ends with the process, or before
// Linux 6.6 by a filter of the clsact qdisc, which replaces the one that an earlier process
// has left. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func NewIPID(netdev int) (*IPID, error) {
	p, err := loadIPID()
	if err != nil {
		return nil, err
	}
	if err := p.attach(netdev); err != nil {
		err = fmt.Errorf("attach an eBPF program to the ingress of netdev %d: %w", netdev, classify(err))
		return nil, errors.Join(err, p.objects.Close())
	}
	return p, nil
}

func loadIPID() (*IPID, error) {
	spec, err := loadIpid()
	if err != nil {
		return nil, err
	}
	p := new(IPID)
	return p, load("ipid", spec, &p.objects)
}

func (p *IPID) attach(netdev int) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: netdev, Program: p.objects.Ipid, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return p.attachFilter(netdev)
	}
	if err != nil {
		return err
	}
	p.detach = l.Close
	return nil
}

// Priority and handle of the filter, by which a process finds the one that an earlier process
// has left. No other program uses the number in both.
const filterID = 4791

// attachFilter attaches the program as a filter of the clsact qdisc, which is created if the
// netdev has none and remains, since others may have come to use it.
func (p *IPID) attachFilter(netdev int) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: netdev, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a clsact qdisc: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: netdev, Parent: netlink.HANDLE_MIN_INGRESS, Handle: filterID, Priority: filterID, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.objects.Ipid.FD(), Name: "ipoibd-ipid", DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("add a filter: %w", err)
	}
	p.detach = func() error { return removeFilter(filter) }
	return nil
}

// removeFilter removes a filter, unless it or its netdev is gone.
func removeFilter(filter *netlink.BpfFilter) error {
	err := netlink.FilterDel(filter)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return os.NewSyscallError("RTM_DELTFILTER", err)
}

// Counts returns the counts.
func (p *IPID) Counts() (out IPIDCounts, err error) {
	sum, err := readCounts(p.objects.Counts, func(sum, cpu *ipidIpidCounts) {
		addTo(sum.Verdicts[:], cpu.Verdicts[:])
		addTo(sum.Segments[:], cpu.Segments[:])
	})
	return IPIDCounts{Marked: sum.Verdicts[0], Taken: sum.Verdicts[1], Segments: sum.Segments[:]}, err
}

// Close detaches the program from the netdev, in whose network namespace the calling thread
// must still be, and releases it. Idempotent.
func (p *IPID) Close() error {
	var err error
	if p.detach != nil {
		err, p.detach = p.detach(), nil
	}
	if err := errors.Join(err, p.objects.Close()); err != nil {
		return fmt.Errorf("detach an eBPF program: %w", err)
	}
	return nil
}
