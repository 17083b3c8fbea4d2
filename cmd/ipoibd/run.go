package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/daemon"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/sandbox"
	"ipoibd/link"
)

// runFlags are the flags of run, before they become a configuration.
type runFlags struct {
	file                string
	logLevel, logFormat string
	remove, allowFaults bool
	takeOver            bool
	user                string
	own                 config.Config // the daemon's own fields
	one                 pflag.FlagSet // flags of one interface and its device
	device              config.Device
	iface               config.Interface
}

func newRunFlags() runFlags {
	return runFlags{own: config.New(), device: config.NewDevice(), iface: config.NewInterface()}
}

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
			confined, programs, err := f.confine(cmd.ErrOrStderr(), s, cmd.Flags().Changed("user"))
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
				Programs:    programs,
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
func (f *runFlags) confine(out io.Writer, s settings, userChosen bool) (*sandbox.Sandbox, *bpf.Programs, error) {
	cfg := s.cfg
	needs := f.needs(cfg)
	load := func() (c sandbox.Carried) {
		if needs.Filters == 0 {
			return c
		}
		fds, err := bpf.Load(needs.Filters)
		if err != nil {
			text := err.Error()
			return sandbox.Carried{Err: text[:min(len(text), maxReason)]}
		}
		return sandbox.Carried{Descriptors: fds}
	}
	if !cfg.Sandbox {
		if userChosen {
			return nil, nil, errors.New("--user cannot be combined with --sandbox=false: " +
				"the daemon changes its user when it enters the sandbox")
		}
		programs, err := openPrograms(load())
		return nil, programs, err
	}
	if f.file != "" {
		// It is read again after the second start.
		info, err := os.Stat(f.file)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file, which the sandbox requires, because the daemon reads it "+
				"twice; copy it to a regular file, or use --sandbox=false", f.file)
		}
		if err != nil {
			return nil, nil, err
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
		return nil, nil, err
	}
	programs, err := openPrograms(confined.Carried)
	return confined, programs, err
}

// maxReason bounds the error of loading programs, in bytes. The error may contain the verifier's log, and
// is passed in an environment variable, for which the kernel permits 128 KiB (MAX_ARG_STRLEN).
const maxReason = 4 << 10

// openPrograms returns the eBPF programs that were loaded; nil if none were needed.
func openPrograms(loaded sandbox.Carried) (*bpf.Programs, error) {
	switch {
	case loaded.Err != "":
		return bpf.Unavailable(errors.New(loaded.Err)), nil
	case len(loaded.Descriptors) == 0:
		return nil, nil
	}
	return bpf.Open(loaded.Descriptors)
}

// needs returns what the daemon needs for a configuration.
func (f *runFlags) needs(cfg *config.Config) sandbox.Policy {
	file := f.file
	if abs, err := filepath.Abs(file); err == nil && file != "" {
		file = abs
	}
	return sandbox.Needs(cfg, file)
}

// daemonVersion is the version of a daemon that this program runs.
func daemonVersion(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.Root().Version, "ipoibd ")
}

// settings are what flags, the environment and the file say.
type settings struct {
	cfg     *config.Config
	format  func(io.Writer) slog.Handler // of the log
	unknown []string                     // variables that stand for no flag
}

// read reads the settings. With an error, it returns those that it has read so far.
func (f *runFlags) read(fs *pflag.FlagSet) (s settings, err error) {
	if s.unknown, err = fromEnvironment(fs, os.Environ()); err != nil {
		return s, err
	}
	if s.format, err = logFormat(f.logLevel, f.logFormat); err != nil {
		return s, byFlag(err, fs)
	}
	s.cfg, err = f.configuration(fs)
	return s, err
}

func (f *runFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.file, "config", "", "configuration `file` (YAML); needed for more than one interface")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&f.user, "user", "ipoibd",
		"if root starts the daemon, run as this `user`; root stays root, as does the default if there is no such user")
	fs.BoolVar(&f.remove, "remove", false, "delete the interfaces when the daemon exits")
	fs.BoolVar(&f.takeOver, "take-over", false,
		"take over from the running daemon without interrupting traffic; start normally if none is running")
	fs.BoolVar(&f.allowFaults, "allow-faults", false, "let 'ipoibd fault' inject faults, for tests")

	bindFields(fs, config.Fields, &f.own)
	bindFields(&f.one, config.DeviceFields, &f.device)
	bindFields(&f.one, config.InterfaceFields, &f.iface)
	fs.AddFlagSet(&f.one)
	for flag, values := range map[string][]string{
		"log-level":  {"debug", "info", "warn", "error"},
		"log-format": {"text", "json"},
		"reset":      {"none", "link", "driver", "pci"},
	} {
		completeFlag(cmd, flag, func() []string { return values })
	}
	completeFlag(cmd, "underlay", netdevs)
	completeFlag(cmd, "device", backend.Names)
}

// bindFields adds the flags of the fields of x.
func bindFields[T any](fs *pflag.FlagSet, table config.Table[T], x *T) {
	for _, f := range table {
		if f.Flag == "" {
			continue
		}
		help := f.Help
		if f.Default != "" {
			help += " (default: " + f.Default + ")"
		}
		switch v := f.Of(x).(type) {
		case *string:
			fs.StringVar(v, f.Flag, *v, help)
		case *config.Reset:
			fs.StringVar((*string)(v), f.Flag, string(*v), help)
		case *bool:
			fs.BoolVar(v, f.Flag, *v, help)
		case *int:
			fs.IntVar(v, f.Flag, *v, help)
		case **int:
			fs.Func(f.Flag, help, func(s string) error {
				n, err := strconv.Atoi(s)
				if err != nil {
					return fmt.Errorf("%q is not a whole number", s)
				}
				*v = &n
				return nil
			})
		case *uint8:
			fs.Uint8Var(v, f.Flag, *v, help)
		case *[]string:
			fs.StringSliceVar(v, f.Flag, *v, help+" (repeatable)")
		case pflag.Value:
			fs.Var(v, f.Flag, help)
		default:
			panic(fmt.Sprintf("no flag has the type of %s", f.Name))
		}
	}
}

// configuration comes from the file, and from the flags and the environment, which change the
// file's values if it configures only one interface.
func (f *runFlags) configuration(fs *pflag.FlagSet) (*config.Config, error) {
	if path, err := filepath.Abs(f.own.Control); err == nil && f.own.Control != "" {
		f.own.Control = path
	}
	if f.file == "" {
		cfg := config.Single(f.own, f.device, f.iface)
		return cfg, byFlag(cfg.Validate(), fs)
	}
	cfg, err := config.Load(f.file)
	if _, wrong := errors.AsType[config.Mistakes](err); wrong {
		return nil, err
	}
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: the daemon's user (--user) must be able to read it; if it is replaced "+
			"while the daemon runs, it must be in a directory of ipoibd's own, such as /etc/ipoibd", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", origin(fs.Lookup("config")), err)
	}
	one := len(cfg.Devices) == 1 && len(cfg.Interfaces) == 1
	changed := override(fs, config.Fields, cfg, &f.own)
	if one {
		changed = override(fs, config.DeviceFields, &cfg.Devices[0], &f.device) || changed
		changed = override(fs, config.InterfaceFields, &cfg.Interfaces[0], &f.iface) || changed
	}
	f.one.VisitAll(func(flag *pflag.Flag) {
		switch {
		case one || !flag.Changed:
		case len(cfg.Interfaces) == 0:
			err = errors.Join(err, fmt.Errorf("%s: %s configures no interface; set it there", origin(flag), f.file))
		default:
			err = errors.Join(err, fmt.Errorf("%s: %s configures several devices or interfaces; set it there",
				origin(flag), f.file))
		}
	})
	if err != nil || !changed {
		return cfg, err
	}
	if err := byChangedFlag(cfg.Validate(), fs); err != nil {
		return nil, fmt.Errorf("%s, changed by flags or the environment: %w", f.file, err)
	}
	return cfg, nil
}

// override gives fields the values of their flags, if these are set, and reports whether any is.
func override[T any](fs *pflag.FlagSet, table config.Table[T], to, from *T) (changed bool) {
	for _, f := range table {
		if fs.Changed(f.Flag) {
			f.Copy(to, from)
			changed = true
		}
	}
	return changed
}

// byFlag names the flag or the variable of each mistake instead of the field.
func byFlag(err error, fs *pflag.FlagSet) error {
	mistakes, _ := errors.AsType[config.Mistakes](err)
	for _, m := range mistakes {
		if flag := fs.Lookup(cmp.Or(m.Flag(), m.Field)); flag != nil {
			m.Field = origin(flag)
		}
	}
	return err
}

// byChangedFlag is byFlag for the values of a file: the other fields are set there.
func byChangedFlag(err error, fs *pflag.FlagSet) error {
	changed := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.Visit(changed.AddFlag)
	return byFlag(err, changed)
}

// logFormat returns a function that creates the log's handler.
func logFormat(level, format string) (func(io.Writer) slog.Handler, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, config.Mistakes{{
			Field: "log-level",
			Text:  fmt.Sprintf("%q is not one of debug, info, warn, error", level),
		}}
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, opts) }, nil
	case "json":
		return func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, opts) }, nil
	}
	return nil, config.Mistakes{{Field: "log-format", Text: fmt.Sprintf("%q is not one of text, json", format)}}
}
