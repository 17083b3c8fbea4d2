package bpf

import "github.com/cilium/ebpf/asm"

// LoadBroken loads a program that reads beyond its context.
func LoadBroken() error {
	spec, err := loadFilter()
	if err != nil {
		return err
	}
	spec.Programs["filter"].Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 10000, asm.Word), asm.Return()}
	return load("broken", spec, new(filterObjects), nil)
}
