package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// insideEnv marks the process in the new namespaces. Its value is the directory for the files of
// the run.
const insideEnv = "TEST_IPOIBD_BENCH_INSIDE"

// endLimit is how long an interrupted run may take to print the results that it has.
const endLimit = 10 * time.Second

// maxLoad is the highest load average at which the machine counts as idle.
const maxLoad = 0.5

var (
	only = flag.String("only", "",
		"run only the contenders whose name/MTU matches this `regexp`, such as 'ipoibd|prototype/2044'")
	rounds  = flag.Int("rounds", 3, "`number` of rounds; the result is their median")
	seconds = flag.Int("seconds", 3, "length of each measurement in `seconds`")
	more    = flag.Bool("continue", false,
		"add the rounds to those in bench.json, which must be from the same program")
	step = flag.String("step", "",
		"add rows with this `text` to docs/performance.md, and replace docs/performance.svg")
	out       = flag.String("out", "bin", "`directory` for bench.json and bench.svg")
	ipoibd    = flag.String("ipoibd", "bin/ipoibd", "`path` of the daemon")
	prototype = flag.String("prototype", "../shared/bench/limit", "`directory` with the source of the prototype")
)

var (
	errFailed      = errors.New("contenders failed")
	errInterrupted = errors.New("interrupted; no result is saved")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := mainIn(ctx)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // the process inside has reported its own
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

func mainIn(ctx context.Context) error {
	wanted, err := regexp.Compile(*only)
	switch {
	case err != nil:
		return fmt.Errorf("-only: %w", err)
	case *rounds < 1 || *seconds < 1:
		return errors.New("-rounds and -seconds must be at least 1")
	}
	if dir := os.Getenv(insideEnv); dir != "" {
		return inside(ctx, dir, wanted)
	}
	if os.Geteuid() != 0 {
		return errors.New("run as root: the benchmark creates interfaces and large socket buffers")
	}
	dir, err := os.MkdirTemp("", "ipoibd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, b := range []struct{ module, pkg, program string }{
		{*prototype, ".", prototypeProgram},
		{"tools", "golang.zx2c4.com/wireguard", wireGuardProgram},
	} {
		cmd := exec.CommandContext(ctx, "go", "-C", b.module, "build", "-o", filepath.Join(dir, b.program), b.pkg)
		if text, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: cannot build %s: %v%s\n", b.program, err, indent(string(text)))
		}
	}
	return enter(ctx, dir)
}

// enter runs this program again in new namespaces. If this process dies, the kernel kills the
// new one, and with it every process in its namespaces.
func enter(ctx context.Context, dir string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = endLimit
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // Pdeathsig is sent when this thread exits, not the process
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// inside performs the run and writes its results.
func inside(ctx context.Context, dir string, wanted *regexp.Regexp) error {
	if err := mountOwn(); err != nil {
		return err
	}
	r := newReport(ctx)
	if r.Load > maxLoad {
		fmt.Fprintf(os.Stderr, "bench: the machine is busy (load average %.1f), "+
			"so the figures will be worse than on an idle one\n", r.Load)
	}
	if *more {
		if err := r.resume(*out); err != nil {
			return err
		}
	}
	if err := r.run(ctx, os.Stderr, dir, wanted); err != nil {
		return err
	}
	fmt.Print(r.table())
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := r.save(*out, *step); err != nil {
		return err
	}
	if r.failed() {
		return errFailed
	}
	return nil
}

// mountOwn mounts /proc and /run for the new namespaces. /run contains the names of network
// namespaces and the sockets of daemons.
func mountOwn() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}
