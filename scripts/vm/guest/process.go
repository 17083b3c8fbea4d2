package guest

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"ipoibd/scripts/vm/protocol"
)

// runLimit bounds the programs of Run.
const runLimit = 2 * time.Minute

// Process is a program that runs, or has run, in a guest.
type Process struct {
	g      *Guest
	id     uint32
	args   []string
	exited chan struct{} // closed once result and err are set
	result Result
	err    error

	mu          sync.Mutex
	out, errOut bytes.Buffer
}

// Result is how a process exited.
type Result struct {
	Code   int            // exit status, -1 if a signal killed it
	Signal syscall.Signal // that killed it, or 0
}

// OK reports whether the process exited with status 0.
func (r Result) OK() bool { return r == Result{} }

func (r Result) String() string {
	if r.Signal != 0 {
		return "killed by " + r.Signal.String()
	}
	return fmt.Sprintf("exit status %d", r.Code)
}

// Start starts a program. A name without a slash is looked up in /usr/bin.
func (g *Guest) Start(name string, args ...string) *Process {
	g.tb.Helper()
	return g.StartEnv(nil, name, args...)
}

// StartEnv starts a program with variables ("NAME=value") in addition to PATH.
func (g *Guest) StartEnv(env []string, name string, args ...string) *Process {
	g.tb.Helper()
	args = append([]string{name}, args...)
	p, err := g.request(args, protocol.Request{Start: &protocol.Start{Args: args, Env: env}})
	if err != nil {
		g.tb.Fatalf("start %q in the guest: %v", args, err)
	}
	return p
}

// Run runs a program, returns what it wrote to its standard output, and fails the
// test unless it exits with 0.
func (g *Guest) Run(name string, args ...string) string {
	g.tb.Helper()
	p := g.Start(name, args...)
	if result := p.Wait(runLimit); !result.OK() {
		g.tb.Fatalf("run %q in the guest: %v\n%s%s", p.args, result, p.Stdout(), p.Stderr())
	}
	return p.Stdout()
}

// Try runs a program and reports whether it exits with 0.
func (g *Guest) Try(name string, args ...string) bool {
	g.tb.Helper()
	return g.Start(name, args...).Wait(runLimit).OK()
}

// Put writes a file and creates its directory.
func (g *Guest) Put(path string, mode os.FileMode, data []byte) {
	g.tb.Helper()
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), protocol.MaxChunk)
		put := protocol.Put{Path: path, Mode: uint32(mode.Perm()), Data: data[:n], Append: !first}
		g.call("put "+path, protocol.Request{Put: &put})
		data = data[n:]
	}
}

// PutFile copies a file of this machine, with its permissions.
func (g *Guest) PutFile(path, from string) {
	g.tb.Helper()
	info, err := os.Stat(from)
	if err != nil {
		g.tb.Fatal(err)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.Put(path, info.Mode(), data)
}

// call sends a request that ends by itself, and waits for its end.
func (g *Guest) call(what string, r protocol.Request) {
	g.tb.Helper()
	p, err := g.request([]string{what}, r)
	if err != nil {
		g.tb.Fatalf("%s in the guest: %v", what, err)
	}
	p.Wait(runLimit)
}

// Signal sends a signal. If the process has already exited, the test fails.
func (p *Process) Signal(s syscall.Signal) {
	p.g.tb.Helper()
	p.g.call(fmt.Sprintf("signal %q", p.args), protocol.Request{Signal: &protocol.Signal{ID: p.id, Number: int(s)}})
}

// Exited is closed at the end of the process, or of the guest.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits for the end of the process. The test fails after limit, if the process
// could not be started, or if the guest has ended.
func (p *Process) Wait(limit time.Duration) Result {
	p.g.tb.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.g.tb.Fatalf("%q in the guest did not exit within %v\n%s%s", p.args, limit, p.Stdout(), p.Stderr())
	}
	if p.err != nil {
		p.g.tb.Fatalf("%q in the guest: %v\n%s%s", p.args, p.err, p.Stdout(), p.Stderr())
	}
	return p.result
}

// Stdout returns the process's standard output so far.
func (p *Process) Stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// Stderr returns its standard error so far.
func (p *Process) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errOut.String()
}
