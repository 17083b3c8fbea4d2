package bpf

import (
	"sync/atomic"

	"github.com/cilium/ebpf/asm"
)

// MaxFastPacket is the longest IP packet on the fast path, in bytes (MAX_PACKET in fast.h).
const MaxFastPacket = 504

// FastRefused returns why a kernel has no fast path.
var FastRefused = fastRefused

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

// PassAll makes the fast path believe that everything that was left to the daemon has passed.
func (g *Gate) PassAll() {
	o := &g.path.orders[g.slot]
	for b := range o.Tx.Left {
		atomic.StoreUint32(&o.Tx.Passed[b], atomic.LoadUint32(&o.Tx.Left[b]))
		atomic.StoreUint32(&o.Rx.Passed[b], atomic.LoadUint32(&o.Rx.Left[b]))
	}
}
