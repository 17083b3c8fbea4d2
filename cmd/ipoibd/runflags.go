package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
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
