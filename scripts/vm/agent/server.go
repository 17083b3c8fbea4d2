package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"ipoibd/scripts/vm/protocol"
)

// outputDelay is how long a process's children may keep its outputs open after
// it has ended.
const outputDelay = time.Second

// errNoProcess means that there is no process for a signal.
var errNoProcess = errors.New("no such process, or it has exited")

// server executes requests. One goroutine reads them; another one waits for
// each process.
type server struct {
	mu      sync.Mutex
	out     io.Writer            // each line is one write
	running map[uint32]*exec.Cmd // by the ID of their request
}

func newServer(out io.Writer) *server {
	return &server{out: out, running: map[uint32]*exec.Cmd{}}
}

// serve returns only with an error, because the port exists as long as the
// machine.
func (s *server) serve(in *protocol.Reader) error {
	for {
		var r protocol.Request
		if err := in.Read(&r); err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		s.handle(r)
	}
}

func (s *server) handle(r protocol.Request) {
	switch {
	case r.Start != nil:
		if err := s.start(r.ID, r.Start); err != nil {
			s.done(r.ID, protocol.Done{}, err)
		}
	case r.Signal != nil:
		s.done(r.ID, protocol.Done{}, s.signal(r.Signal))
	case r.Put != nil:
		s.done(r.ID, protocol.Done{}, put(r.Put))
	default:
		s.done(r.ID, protocol.Done{}, errors.New("the request is empty"))
	}
}

// start starts a process; [server.wait] reports its end.
func (s *server) start(id uint32, r *protocol.Start) error {
	if len(r.Args) == 0 {
		return errors.New("the request names no program")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = outputDelay
	cmd.Stdout = &stream{func(b []byte) { s.reply(protocol.Reply{ID: id, Out: b}) }}
	cmd.Stderr = &stream{func(b []byte) { s.reply(protocol.Reply{ID: id, Err: b}) }}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.running[id] = cmd
	go s.wait(id, cmd)
	return nil
}

// wait reports the end of a process.
func (s *server) wait(id uint32, cmd *exec.Cmd) {
	err := cmd.Wait()
	s.mu.Lock()
	delete(s.running, id)
	s.mu.Unlock()
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	s.done(id, ending(cmd.ProcessState), err)
}

func ending(p *os.ProcessState) protocol.Done {
	status, ok := p.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return protocol.Done{Code: -1, Signal: int(status.Signal())}
	}
	return protocol.Done{Code: p.ExitCode()}
}

func (s *server) signal(r *protocol.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := s.running[r.ID]
	if cmd == nil {
		return errNoProcess
	}
	return cmd.Process.Signal(syscall.Signal(r.Number))
}

func (s *server) done(id uint32, d protocol.Done, err error) {
	if err != nil {
		d.Error = err.Error()
	}
	s.reply(protocol.Reply{ID: id, Done: &d})
}

// reply writes a line. If the port is gone, the agent exits.
func (s *server) reply(r protocol.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := protocol.Write(s.out, r); err != nil {
		fmt.Fprintln(os.Stderr, "agent: reply:", err)
		os.Exit(1)
	}
}

// stream splits the output of a process into chunks.
type stream struct{ send func([]byte) }

func (s *stream) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), protocol.MaxChunk)
		s.send(rest[:n])
		rest = rest[n:]
	}
	return len(p), nil
}

func put(r *protocol.Put) error {
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o755); err != nil {
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if r.Append {
		flags = os.O_WRONLY | os.O_APPEND
	}
	f, err := os.OpenFile(r.Path, flags, os.FileMode(r.Mode))
	if err != nil {
		return err
	}
	if _, err := f.Write(r.Data); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
