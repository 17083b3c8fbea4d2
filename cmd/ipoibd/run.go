package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/daemon"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/sandbox"
	"ipoibd/link"
)

func runCommand() *cobra.Command {
	f := newRunFlags()
	var s settings
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground",
		Long: "Run the daemon in the foreground until SIGINT or SIGTERM.\n\n" +
			"At its start the daemon drops all privileges that its configuration does not need, unless\n" +
			"--sandbox=false.\n\n" +
			"The interface is created down: 'ip link set ib0 up', or --up, opens the queue pair.\n" +
			"When the daemon exits, the interface stays, with its addresses and without carrier; the\n" +
			"next start adopts it. The daemon stops within 8 seconds. A second signal kills it at once.\n" +
			"On SIGHUP the daemon reloads the file of --config, as 'ipoibd reload' does.\n\n" +
			"Each flag but --port can also be set by an environment variable:\n" +
			"IPOIBD_LOG_LEVEL=debug stands for --log-level debug. A flag takes precedence over its\n" +
			"variable, and both over the file of --config. If the file configures several devices or\n" +
			"interfaces, flags of a device or an interface are refused.",
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err = f.read(cmd.Flags())
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			confined, loaded, err := f.confine(cmd.ErrOrStderr(), s, cmd.Flags().Changed("user"))
			if err != nil {
				return err
			}
			process.TuneCollector()
			lines := process.NewLogWriter(cmd.ErrOrStderr(), s.format)
			defer lines.Close()
			limited := process.LimitLog(s.format(lines))
			defer limited.Flush()
			log := slog.New(limited)
			slog.SetDefault(log) // for libraries
			for _, name := range s.unknown {
				log.Warn("ignoring unknown environment variable", "name", name)
			}
			if confined != nil && len(confined.Missing) > 0 {
				log.Info("the sandbox is not complete", "missing", strings.Join(confined.Missing, "; "))
			}
			hangups := make(chan os.Signal, 1) // several during a reload lead to one more
			signal.Notify(hangups, unix.SIGHUP)
			defer signal.Stop(hangups)
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills the process
			opts := daemon.Options{
				Version:     daemonVersion(cmd),
				Remove:      f.remove,
				AllowFaults: f.allowFaults,
				LockMemory:  true,
				TakeOver:    f.takeOver,
				OpenRDMA:    openRDMA,
				Programs:    loaded.ofInterfaces,
				FastPath:    loaded.fastPath,
				Hangup:      hangups,
				Log:         log,
			}
			if opts.Sandbox, err = confined.Report(); err != nil {
				return err
			}
			if confined != nil {
				opts.Admit = func(next *config.Config) error { return sandbox.Check(confined.Policy, f.needs(next)) }
			}
			if f.file != "" {
				opts.Load = func() (*config.Config, error) { return f.configuration(cmd.Flags()) }
			}
			err = daemon.Run(ctx, s.cfg, opts)
			switch {
			case errors.Is(err, link.ErrOwned):
				err = fmt.Errorf("%w: stop it, or choose another name", err)
			case errors.Is(err, link.ErrNameTaken):
				err = fmt.Errorf("%w: choose another name", err)
			}
			return err
		},
	}
	f.bind(cmd)
	return cmd
}

// confine loads the eBPF programs and enters the sandbox, for which the program executes itself again. It
// returns no sandbox if the configuration switches it off, and no programs if they are not needed. In the first
// start it logs what the sandbox will hide: the processes that have the UDP port of a device.
func (f *runFlags) confine(out io.Writer, s settings, userChosen bool) (*sandbox.Sandbox, programs, error) {
	cfg := s.cfg
	needs := f.needs(cfg)
	load := func() (c sandbox.Carried) {
		if needs.Filters > 0 {
			c.Programs = resultOf(bpf.Load(needs.Filters))
		}
		if needs.FastPath {
			c.FastPath = resultOf(bpf.LoadFastPath())
		}
		return c
	}
	if !cfg.Sandbox {
		if userChosen {
			return nil, programs{}, errors.New("--user cannot be combined with --sandbox=false: " +
				"the daemon changes its user when it enters the sandbox")
		}
		loaded, err := openPrograms(load())
		return nil, loaded, err
	}
	if f.file != "" {
		// It is read again after the second start.
		info, err := os.Stat(f.file)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file, which the sandbox requires, because the daemon reads it "+
				"twice; copy it to a regular file, or use --sandbox=false", f.file)
		}
		if err != nil {
			return nil, programs{}, err
		}
	}
	first := func() sandbox.Carried {
		for i := range cfg.Devices {
			d := &cfg.Devices[i]
			if taken := backend.PortTaken(d); taken != nil && !f.takeOver {
				slog.New(s.format(out)).Warn("the UDP port of the device is taken", "device", d.Name, "err", taken)
			}
		}
		return load()
	}
	user := func() (*sandbox.User, error) { return f.runAs(cfg, needs, userChosen) }
	confined, err := sandbox.Enter(needs, user, first)
	if err == nil {
		err = sandbox.Check(confined.Policy, needs) // the file may have changed meanwhile
	}
	if err != nil {
		return nil, programs{}, err
	}
	loaded, err := openPrograms(confined.Carried)
	return confined, loaded, err
}

// programs are the eBPF programs of the daemon.
type programs struct {
	ofInterfaces *bpf.Programs // nil: not loaded
	fastPath     *bpf.FastPath
}

// maxReason bounds the error of loading programs, in bytes. The error may contain the verifier's log, and
// is passed in an environment variable, for which the kernel permits 128 KiB (MAX_ARG_STRLEN).
const maxReason = 4 << 10

// resultOf returns the result of loading programs.
func resultOf(fds []int, err error) sandbox.Loaded {
	if err != nil {
		text := err.Error()
		return sandbox.Loaded{Err: text[:min(len(text), maxReason)]}
	}
	return sandbox.Loaded{Descriptors: fds}
}

// openPrograms returns the eBPF programs that were loaded.
func openPrograms(c sandbox.Carried) (l programs, err error) {
	switch p := c.Programs; {
	case p.Err != "":
		l.ofInterfaces = bpf.Unavailable(errors.New(p.Err))
	case len(p.Descriptors) > 0:
		l.ofInterfaces, err = bpf.Open(p.Descriptors)
	}
	if err != nil {
		return l, err
	}
	switch p := c.FastPath; {
	case p.Err != "":
		l.fastPath = bpf.NoFastPath(errors.New(p.Err))
	case len(p.Descriptors) > 0:
		l.fastPath, err = bpf.OpenFastPath(p.Descriptors)
	default: // a reload may ask for it
		l.fastPath = bpf.NoFastPath(bpf.ErrNotLoaded)
	}
	return l, err
}

// needs returns what the daemon needs for a configuration.
func (f *runFlags) needs(cfg *config.Config) sandbox.Policy {
	file := f.file
	if abs, err := filepath.Abs(file); err == nil && file != "" {
		file = abs
	}
	return sandbox.Needs(cfg, file)
}
