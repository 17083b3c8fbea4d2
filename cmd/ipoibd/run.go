package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/daemon"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/link"
)

// runFlags are the flags of run, before they become a configuration.
type runFlags struct {
	file, control, pkey string
	logLevel, logFormat string
	remove, allowFaults bool
	device              config.Device
	iface               config.Interface
}

func runCommand() *cobra.Command {
	f := runFlags{device: config.NewDevice(), iface: config.NewInterface()}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground",
		Long: "Run the daemon in the foreground until SIGINT or SIGTERM.\n\n" +
			"The interface is made down: 'ip link set ib0 up' opens the queue pair. It is\n" +
			"kept, with its addresses, when the daemon ends; the next start adopts it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.bind(cmd.Flags())
	return cmd
}

// oneInterface are the flags that a configuration file replaces.
var oneInterface = []string{
	"name", "device", "reset", "underlay", "port", "pkey", "gid", "gid-index", "mtu", "peer", "known-peers-only", "standard-mtu",
}

func (f *runFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "config", "", "YAML file, for any number of interfaces")
	fs.StringVar(&f.control, "control", config.DefaultControl, "path of the control socket")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.BoolVar(&f.remove, "remove", false, "delete the interfaces when the daemon ends")
	fs.BoolVar(&f.allowFaults, "allow-faults", false, "let 'ipoibd fault' inject faults, for tests")
	fs.StringVar(&f.iface.Name, "name", f.iface.Name, "name of the interface")
	fs.StringVar(&f.device.HCA, "device", f.device.HCA, "soft, or an RDMA device of the kernel; 'ipoibd devices' lists them")
	fs.StringVar((*string)(&f.device.Reset), "reset", string(f.device.Reset), "how a real HCA is reset: none, link, driver or pci")
	fs.StringVar(&f.device.Underlay, "underlay", "", "netdev of the software HCA (default: that of the default route)")
	fs.Uint8Var(&f.iface.Port, "port", f.iface.Port, "port of the device, from 1 to 255")
	fs.StringVar(&f.pkey, "pkey", "0xffff", "P_Key of the interface")
	fs.StringVar(&f.iface.GID, "gid", "", "`address` of the GID to use (default: first IPv4, global IPv6, link-local)")
	fs.Func("gid-index", "`index` of the GID to use in the port's table (default: as for --gid)", f.setGIDIndex)
	fs.IntVar(&f.iface.MTU, "mtu", 0, "MTU of the interface (default: the largest that fits)")
	fs.StringArrayVar(&f.device.Peers, "peer", nil, "address or DNS name of a peer: multicast is replicated to the peers (repeatable)")
	fs.BoolVar(&f.device.KnownPeersOnly, "known-peers-only", false, "drop what comes from any address but the peers'")
	fs.BoolVar(&f.device.StandardMTU, "standard-mtu", false, "keep to the MTU steps of InfiniBand, as real HCAs need it")
}

func (f *runFlags) setGIDIndex(s string) error {
	i, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("must be a whole number from 0 to 255")
	}
	f.iface.GIDIndex = &i
	return nil
}

func (f *runFlags) run(cmd *cobra.Command) error {
	format, err := logFormat(f.logLevel, f.logFormat)
	if err != nil {
		return err
	}
	lines := process.NewLogWriter(cmd.ErrOrStderr(), format)
	defer lines.Close()
	limited := process.LimitLog(format(lines))
	defer limited.Flush()
	log := slog.New(limited)
	slog.SetDefault(log) // for what libraries have to say
	cfg, err := f.configuration(cmd.Flags())
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends what hangs
	return advise(daemon.Run(ctx, cfg, daemon.Options{
		Version: version, Remove: f.remove, AllowFaults: f.allowFaults, LockMemory: true, OpenHCA: openHCA, Log: log,
	}))
}

// advise adds what to do about another process that has what this one needs.
func advise(err error) error {
	for taken, advice := range map[error]string{
		control.ErrRunning: "stop it, or choose another path with --control",
		link.ErrOwned:      "stop it, or choose another name",
	} {
		if errors.Is(err, taken) {
			return fmt.Errorf("%w: %s", err, advice)
		}
	}
	return err
}

// configuration comes from the file, or from the flags of one interface.
func (f *runFlags) configuration(fs *pflag.FlagSet) (*config.Config, error) {
	if f.file == "" {
		return f.fromFlags()
	}
	for _, name := range oneInterface {
		if fs.Changed(name) {
			return nil, fmt.Errorf("--%s and --config exclude each other: set it in the file", name)
		}
	}
	cfg, err := config.Load(f.file)
	if err != nil || !fs.Changed("control") {
		return cfg, err
	}
	cfg.Control = f.controlPath()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%s with --control %s: %w", f.file, f.control, err)
	}
	return cfg, nil
}

// controlPath makes what the flag says absolute: on a command line a path is
// relative to where one is.
func (f *runFlags) controlPath() string {
	if path, err := filepath.Abs(f.control); err == nil && f.control != "" {
		return path
	}
	return f.control
}

func (f *runFlags) fromFlags() (*config.Config, error) {
	pkey, err := config.ParsePKey(f.pkey)
	if err != nil {
		return nil, fmt.Errorf("--pkey: %w", err)
	}
	f.iface.PKey = pkey
	cfg := config.Single(f.controlPath(), f.device, f.iface)
	if err := cfg.Validate(); err != nil {
		return nil, errors.New(flagOfField.Replace(err.Error()))
	}
	return cfg, nil
}

// flagOfField says in a mistake's text which flag it came by.
var flagOfField = strings.NewReplacer(
	"interfaces[0].name: ", "--name: ",
	"interfaces[0].port: ", "--port: ",
	"interfaces[0].gid: ", "--gid: ",
	"interfaces[0].gid_index: ", "--gid-index: ",
	"interfaces[0].mtu: ", "--mtu: ",
	"devices[0].device: ", "--device: ",
	"devices[0].reset: ", "--reset: ",
	"devices[0].underlay: ", "--underlay: ",
	"devices[0].standard_mtu: ", "--standard-mtu: ",
	"devices[0].peers: ", "--peer: ",
	"devices[0].known_peers_only: ", "--known-peers-only: ",
	"control: ", "--control: ",
)

// logFormat returns what makes the log's handler.
func logFormat(level, format string) (func(io.Writer) slog.Handler, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, opts) }, nil
	case "json":
		return func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, opts) }, nil
	}
	return nil, errors.New("--log-format: must be text or json")
}
