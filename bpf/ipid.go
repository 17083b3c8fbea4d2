package bpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// KnownID returns the IPv4 identification in the mark of a received packet, and whether the
// mark has one.
func KnownID(mark uint32) (id uint16, known bool) {
	return uint16(mark >> 16), mark&0xffff == markKnown
}

// markKnown is the lower half of a mark that the program set. No other program is known to test
// this bit: Kubernetes uses 0x4000 and 0x8000, Cilium 0x0f00.
const markKnown = 0x2000

// IPIDCounts are the counts of the program since it was loaded.
type IPIDCounts struct {
	Marked uint64 // packets that were marked
	Taken  uint64 // packets that already had another mark, which is kept
	// Segments is the distribution of both by the number of datagrams in the packet.
	Segments Histogram
}

// IPID copies the IPv4 identification of RoCEv2 datagrams that a netdev receives to their
// marks.
type IPID struct {
	objects  ipidObjects
	attached io.Closer // nil: not attached
}

// NewIPID loads the program and attaches it to the ingress of a netdev, given by its index in
// the network namespace of the calling thread. The attachment is a tcx link, which ends with the
// process. Before Linux 6.6 it is a filter of the clsact qdisc, beside those of other processes;
// filters that killed processes left behind are removed. Errors: ErrNotPermitted,
// ErrNotSupported, the verifier's.
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
	return p, load("ipid", spec, &p.objects, nil)
}

func (p *IPID) attach(netdev int) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: netdev, Program: p.objects.Ipid, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return p.attachFilter(netdev)
	}
	if err != nil {
		return err
	}
	p.attached = l
	return nil
}

func (p *IPID) attachFilter(netdev int) error {
	f, err := attachIPIDFilter(netdev, p.objects.Ipid.FD())
	if err != nil {
		return err
	}
	p.attached = f
	return nil
}

// Counts returns the counts.
func (p *IPID) Counts() (out IPIDCounts, err error) {
	sum, err := readCounts(p.objects.Counts, func(sum, cpu *ipidIpidCounts) {
		addTo(sum.Verdicts[:], cpu.Verdicts[:])
		addTo(sum.Segments[:], cpu.Segments[:])
	})
	return IPIDCounts{Marked: sum.Verdicts[0], Taken: sum.Verdicts[1], Segments: sum.Segments[:]}, err
}

// Close detaches the program from the netdev and releases it. The calling thread must be in the
// network namespace of the netdev. Idempotent.
func (p *IPID) Close() error {
	var err error
	if p.attached != nil {
		err, p.attached = p.attached.Close(), nil
	}
	if err := errors.Join(err, p.objects.Close()); err != nil {
		return fmt.Errorf("detach an eBPF program: %w", err)
	}
	return nil
}
