package nstest

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Program returns the descriptor of an eBPF program that returns result. It ends with the test.
func Program(tb testing.TB, kind ebpf.ProgramType, result int32) (fd int) {
	tb.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, result), asm.Return()},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p.FD()
}
