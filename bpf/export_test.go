package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// NewIPIDByFilter is NewIPID on a kernel without tcx.
func NewIPIDByFilter(netdev int) (*IPID, error) {
	p, err := loadIPID()
	if err != nil {
		return nil, err
	}
	if err := p.attachFilter(netdev); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return p, nil
}

// Abandon leaves the filter of a program behind, as a killed process does.
func (p *IPID) Abandon() {
	_ = unix.Close(p.attached.(*ipidFilter).owner)
	_ = p.objects.Close()
}

// LoadIPID loads the program without attaching it.
func LoadIPID() (*IPID, error) { return loadIPID() }

// Program returns the descriptor of the program.
func (p *IPID) Program() int { return p.objects.Ipid.FD() }

// LoadBroken loads a program that reads beyond its context.
func LoadBroken() error {
	spec, err := loadFilter()
	if err != nil {
		return err
	}
	spec.Programs["filter"].Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 10000, asm.Word), asm.Return()}
	return load("broken", spec, new(filterObjects), nil)
}
