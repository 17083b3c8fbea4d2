package backend

import (
	"context"
	"log/slog"
	"sync/atomic"

	"ipoibd/bpf"
	linux "ipoibd/link/kernel"
)

// underlayProgram keeps the program of the fast path attached to the underlay of a software HCA. Without it, packets take their way
// through the daemon. Calls of the kernel may wait for its lock of all interfaces, so they have a goroutine of their own.
type underlayProgram struct {
	path  *bpf.FastPath // nil: there is none
	log   *slog.Logger
	index chan int // of the netdev; the latest
	given atomic.Bool
}

func newUnderlayProgram(path *bpf.FastPath, log *slog.Logger) *underlayProgram {
	return &underlayProgram{path: path, log: log, index: make(chan int, 1)}
}

// at says which netdev is the underlay. One goroutine at a time calls it.
func (p *underlayProgram) at(index int) {
	select {
	case <-p.index:
	default:
	}
	p.index <- index
}

// giveUp leaves the program to another process.
func (p *underlayProgram) giveUp() { p.given.Store(true) }

// run attaches the program until ctx ends, and then removes it. Without a fast path, it removes one that a process which was
// killed has left.
func (p *underlayProgram) run(ctx context.Context) {
	attached := 0
	for {
		select {
		case <-ctx.Done():
			if attached != 0 && !p.given.Load() {
				p.failed("remove", linux.DetachProgram(attached, linux.Ingress))
			}
			return
		case index := <-p.index:
			switch {
			case index == attached:
			case p.path == nil, p.path.AtUnderlay < 0:
				p.failed("remove", linux.DetachProgram(index, linux.Ingress))
			default:
				p.failed("attach", linux.AttachProgram(index, linux.Ingress, p.path.AtUnderlay))
			}
			attached = index
		}
	}
}

func (p *underlayProgram) failed(what string, err error) {
	if err != nil {
		p.log.Warn("cannot "+what+" the program of the fast path at the underlay", "err", err)
	}
}
