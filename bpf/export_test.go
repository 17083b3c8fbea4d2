package bpf

import "github.com/cilium/ebpf/asm"

// LoadBroken loads a program that reads beyond its context.
func LoadBroken() error {
	spec, err := loadFilter()
	if err != nil {
		return err
	}
	spec.Programs["filter"].Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 10000, asm.Word), asm.Return()}
	return load("broken", spec, new(filterObjects))
}

// LoadSteering loads a steering program for any number of queues. The caller owns the descriptor.
func LoadSteering(queues uint32) (fd int, err error) {
	fds, err := loadSteering(nil, queues)
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}
