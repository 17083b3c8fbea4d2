package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	underlay    = "eth0" // the interface of both hosts on the underlay
	underlayMTU = 9000
	readyLimit  = 15 * time.Second // for anything to start; about ten times the usual time
	readyPoll   = 20 * time.Millisecond
)

// host is a network namespace.
type host struct {
	name    string
	dir     string // for the files of its daemon
	address string // on the underlay
	dev     string // the interface of the contender, which has the address inner
	inner   string
	peer    *host
}

// twoHosts returns hosts that do not exist yet.
func twoHosts(dir string) (a, b *host) {
	a = &host{name: "a", dir: filepath.Join(dir, "a"), address: "192.0.2.1", dev: "ov-a", inner: "10.0.0.1"}
	b = &host{name: "b", dir: filepath.Join(dir, "b"), address: "192.0.2.2", dev: "ov-b", inner: "10.0.0.2", peer: a}
	a.peer = b
	return a, b
}

// create creates both hosts and the veth pair that connects them.
func create(ctx context.Context, a, b *host) error {
	for _, h := range []*host{a, b} {
		if err := os.Mkdir(h.dir, 0o700); err != nil {
			return err
		}
		if _, err := run(exec.CommandContext(ctx, "ip", "netns", "add", h.name)); err != nil {
			return err
		}
	}
	mtu := strconv.Itoa(underlayMTU)
	_, err := a.run(ctx, "ip", "link", "add", underlay, "mtu", mtu,
		"type", "veth", "peer", "name", underlay, "mtu", mtu, "netns", b.name)
	if err != nil {
		return err
	}
	for _, h := range []*host{a, b} {
		for _, args := range [][]string{
			{"link", "set", "lo", "up"},
			{"link", "set", underlay, "up"},
			{"addr", "add", h.address + "/24", "dev", underlay},
		} {
			if _, err := h.run(ctx, "ip", args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes the host and all its interfaces, as far as they exist. Its processes must have
// exited.
func (h *host) remove() error {
	_, err := run(exec.Command("ip", "netns", "del", h.name))
	return errors.Join(err, os.RemoveAll(h.dir))
}

// command prepares a program that runs on the host. nsenter executes the program, so the process
// ID belongs to the program.
func (h *host) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + h.name, "--", name}, args...)...)
}

// run runs a program on the host and returns its standard output.
func (h *host) run(ctx context.Context, name string, args ...string) (string, error) {
	return run(h.command(ctx, name, args...))
}

func run(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, indent(stderr.String()+string(out)))
	}
	return string(out), err
}

// retry repeats a program on the host until it succeeds and, with mustPrint, prints something.
func (h *host) retry(ctx context.Context, mustPrint bool, name string, args ...string) error {
	for start := time.Now(); ; time.Sleep(readyPoll) {
		out, err := h.run(ctx, name, args...)
		switch {
		case err == nil && (out != "" || !mustPrint), ctx.Err() != nil:
			return err
		case time.Since(start) > readyLimit && err == nil:
			return fmt.Errorf("%s %s printed nothing within %v", name, strings.Join(args, " "), readyLimit)
		case time.Since(start) > readyLimit:
			return fmt.Errorf("no success within %v: %w", readyLimit, err)
		}
	}
}

// process is a program in the background. Its output is in a file.
type process struct {
	cmd *exec.Cmd
	log string
}

// start starts a program on the host.
func (h *host) start(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{cmd: h.command(ctx, name, args...), log: filepath.Join(h.dir, filepath.Base(name)+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own descriptor
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// stop kills the program and waits until it exits.
func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// explain adds the end of the program's output to an error.
func (p *process) explain(err error) error {
	text, _ := os.ReadFile(p.log)
	return fmt.Errorf("%w\n  last output of %s:%s", err, p.cmd.Args[3], indent(string(text)))
}

// indent returns the last lines of a program's output, each on a line of its own.
func indent(output string) string {
	const most = 5
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return "\n    " + strings.Join(lines[max(0, len(lines)-most):], "\n    ")
}

// cpu returns the processor time that the program has used.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(text))
}
