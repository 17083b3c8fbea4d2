package guest

import (
	"errors"
	"syscall"

	"ipoibd/scripts/vm/protocol"
)

// errGone means that the guest has ended.
var errGone = errors.New("the guest has ended")

// request sends a request and returns a Process that collects its replies.
func (g *Guest) request(args []string, r protocol.Request) (*Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		return nil, errGone
	}
	g.lastID++
	r.ID = g.lastID
	p := &Process{g: g, id: r.ID, args: args, exited: make(chan struct{})}
	g.open[r.ID] = p
	return p, protocol.Write(g.end, r)
}

// read dispatches replies until the channel ends, and then ends all requests.
func (g *Guest) read() {
	defer close(g.gone)
	in := protocol.NewReader(g.end)
	for {
		var r protocol.Reply
		if err := in.Read(&r); err != nil {
			g.abandon(err)
			return
		}
		g.handle(r)
	}
}

func (g *Guest) handle(r protocol.Reply) {
	if r.ID == 0 {
		close(g.booted)
		return
	}
	g.mu.Lock()
	p := g.open[r.ID]
	if r.Done != nil {
		delete(g.open, r.ID)
	}
	g.mu.Unlock()
	if p != nil {
		p.handle(r)
	}
}

// abandon ends every request without a result, and refuses new ones.
func (g *Guest) abandon(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.open {
		p.err = errors.Join(errGone, cause)
		close(p.exited)
	}
	g.open = nil
}

func (p *Process) handle(r protocol.Reply) {
	p.mu.Lock()
	p.out.Write(r.Out)
	p.errOut.Write(r.Err)
	p.mu.Unlock()
	if r.Done == nil {
		return
	}
	if r.Done.Error != "" {
		p.err = errors.New(r.Done.Error)
	}
	p.result = Result{r.Done.Code, syscall.Signal(r.Done.Signal)}
	close(p.exited)
}
