package backend

import (
	"log/slog"
	"sync"

	"ipoibd/bpf"
	"ipoibd/hca"
)

// exactIDs is the program that reports the IPv4 identification of received packets. It is
// attached to one netdev at a time.
type exactIDs struct {
	mu    sync.Mutex // guards the fields
	prog  *bpf.IPID  // nil: not attached
	index int        // of its netdev
	said  string     // the last error that was logged
}

// attach attaches the program to a netdev, unless it is attached there. Without it, the
// identifications stay unknown.
func (x *exactIDs) attach(index int, log *slog.Logger) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.prog != nil && x.index == index {
		return
	}
	err := x.detach()
	if err == nil {
		x.prog, err = bpf.NewIPID(index)
		x.index = index
	}
	if err != nil && err.Error() != x.said {
		x.said = err.Error()
		log.Warn("cannot read the IPv4 identification of received packets: about one in 65,000 damaged packets from other RoCE implementations is accepted", "err", err)
	}
}

func (x *exactIDs) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.detach()
}

func (x *exactIDs) detach() (err error) {
	if x.prog != nil {
		err = x.prog.Close()
		x.prog = nil
	}
	return err
}

// counters returns the counts of the program, or nil if it is not attached.
func (x *exactIDs) counters() []hca.Counter {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.prog == nil {
		return nil
	}
	c, err := x.prog.Counts()
	if err != nil {
		return nil
	}
	return []hca.Counter{
		{Name: "id_marked", Kind: hca.CountTotal, Value: c.Marked},
		{Name: "id_mark_taken", Kind: hca.CountTotal, Value: c.Taken},
	}
}
