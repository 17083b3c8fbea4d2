package backend

import (
	"context"
	"log/slog"
	"sync/atomic"

	"ipoibd/bpf"
	linux "ipoibd/link/kernel"
)

// underlayProgram attaches the program of the fast path to the underlay of a software HCA each time that the HCA is opened.
// Without it, packets go through the daemon. System calls may wait for the kernel's rtnl lock, so they have a goroutine of their own.
type underlayProgram struct {
	path  *bpf.FastPath // nil: no fast path
	log   *slog.Logger
	index chan int    // of the netdev; the latest
	given atomic.Bool // another process continues
}

func newUnderlayProgram(path *bpf.FastPath, log *slog.Logger) *underlayProgram {
	return &underlayProgram{path: path, log: log, index: make(chan int, 1)}
}

// setUnderlay sets the index of the underlay, each time that the HCA is opened. One goroutine at a time calls it.
func (p *underlayProgram) setUnderlay(index int) {
	select {
	case <-p.index:
	default:
	}
	p.index <- index
}

// giveUp leaves the program to another process.
func (p *underlayProgram) giveUp() { p.given.Store(true) }

// run attaches the program, and removes it when ctx ends. Without a fast path it removes what a killed process left.
func (p *underlayProgram) run(ctx context.Context) {
	attached := 0
	for {
		select {
		case <-ctx.Done():
			if attached != 0 && !p.given.Load() {
				p.remove(attached)
			}
			return
		case index := <-p.index:
			if p.path == nil || p.path.AtUnderlay < 0 {
				p.remove(index)
			} else if err := linux.AttachProgram(index, linux.Ingress, p.path.AtUnderlay); err != nil {
				p.log.Warn("cannot attach the fast path to the underlay; packets go through the daemon", "err", err)
			} else {
				if attached != 0 && attached != index { // another netdev has the name of the underlay now
					p.remove(attached)
				}
				attached = index
				p.path.Attached(index)
			}
		}
	}
}

func (p *underlayProgram) remove(index int) {
	if err := linux.DetachProgram(index, linux.Ingress); err != nil {
		p.log.Warn("cannot remove the fast path from the underlay", "index", index, "err", err)
	}
}
