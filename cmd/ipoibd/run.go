package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/daemon"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/link"
)

// runFlags are the flags of run, before they become a configuration.
type runFlags struct {
	file, control       string
	logLevel, logFormat string
	remove, allowFaults bool
	one                 pflag.FlagSet // flags of one interface, which a configuration file replaces
	device              config.Device
	iface               config.Interface
	gidIndex            int
}

func runCommand() *cobra.Command {
	f := runFlags{device: config.NewDevice(), iface: config.NewInterface()}
	var cfg *config.Config
	var format func(io.Writer) slog.Handler
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground",
		Long: "Run the daemon in the foreground until SIGINT or SIGTERM.\n\n" +
			"The interface is created down: 'ip link set ib0 up' opens the queue pair. When the\n" +
			"daemon ends, the interface stays, with its addresses and without carrier; the next\n" +
			"start adopts it. The daemon stops within 8 seconds. A second signal ends it at once.",
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if format, err = logFormat(f.logLevel, f.logFormat); err == nil {
				cfg, err = f.configuration(cmd.Flags())
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines := process.NewLogWriter(cmd.ErrOrStderr(), format)
			defer lines.Close()
			limited := process.LimitLog(format(lines))
			defer limited.Flush()
			log := slog.New(limited)
			slog.SetDefault(log) // for libraries
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills the process
			err := daemon.Run(ctx, cfg, daemon.Options{
				Version: strings.TrimPrefix(cmd.Root().Version, "ipoibd "), Remove: f.remove, AllowFaults: f.allowFaults, LockMemory: true, OpenRDMA: openRDMA, Log: log,
			})
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

func (f *runFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.file, "config", "", "configuration `file` (YAML); needed for more than one interface")
	fs.StringVar(&f.control, "control", config.DefaultControl, "path of the control socket")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.BoolVar(&f.remove, "remove", false, "delete the interfaces when the daemon ends")
	fs.BoolVar(&f.allowFaults, "allow-faults", false, "let 'ipoibd fault' inject faults, for tests")

	fs = &f.one
	fs.StringVar(&f.iface.Name, "name", f.iface.Name, "name of the interface")
	fs.StringVar(&f.device.HCA, "device", f.device.HCA, "soft, or another HCA that 'ipoibd devices' lists")
	fs.StringVar((*string)(&f.device.Reset), "reset", string(f.device.Reset), "how a real HCA is reset: none, link, driver or pci")
	fs.StringVar(&f.device.Underlay, "underlay", "", "netdev of the software HCA (default: that of the default route)")
	fs.Uint8Var(&f.iface.Port, "port", f.iface.Port, "port of the device, from 1 to 255")
	fs.Func("pkey", "P_Key of the interface (default 0xffff)", func(s string) (err error) {
		f.iface.PKey, err = config.ParsePKey(s)
		return err
	})
	fs.StringVar(&f.iface.GID, "gid", "", "`address` of the GID to use (default: first IPv4, global IPv6, link-local)")
	fs.IntVar(&f.gidIndex, "gid-index", 0, "`index` of the GID to use in the port's table (default: as for --gid)")
	fs.IntVar(&f.iface.MTU, "mtu", 0, "MTU of the interface (default: the largest that fits)")
	fs.BoolVar(&f.iface.EBPF, "ebpf", f.iface.EBPF, "use eBPF programs to drop frames that IPoIB cannot carry, and to select queues, in the kernel")
	fs.StringArrayVar(&f.device.Peers, "peer", nil, "address or DNS name of a peer; multicast is replicated to the peers (repeatable)")
	fs.BoolVar(&f.device.KnownPeersOnly, "known-peers-only", false, "drop packets that do not come from a peer's address")
	fs.StringVar(&f.device.SharePort, "share-port", "", "share UDP port 4791 with this user's other daemons, through a private `directory` (created if missing)")
	fs.Lookup("share-port").NoOptDefVal = config.DefaultSharePort
	fs.BoolVar(&f.device.ExactIDs, "exact-ids", false, "check the IPv4 identification of received packets exactly, with an eBPF program that sets their marks")
	fs.IntVar(&f.device.Lanes, "lanes", 1, "number of lanes, each with its own sockets, queues and goroutines: 1, 2, 4 or 8")
	fs.BoolVar(&f.device.StandardMTU, "standard-mtu", false, "use only standard InfiniBand MTUs, for interoperability with real HCAs")
	cmd.Flags().AddFlagSet(fs)

	for flag, values := range map[string][]string{
		"log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"}, "reset": {"none", "link", "driver", "pci"},
	} {
		completeFlag(cmd, flag, func() []string { return values })
	}
	completeFlag(cmd, "underlay", netdevs)
	completeFlag(cmd, "device", backend.Names)
}

// configuration comes from the file, or from the flags of one interface.
func (f *runFlags) configuration(fs *pflag.FlagSet) (*config.Config, error) {
	if path, err := filepath.Abs(f.control); err == nil && f.control != "" {
		f.control = path
	}
	if f.file == "" {
		if fs.Changed("gid-index") {
			f.iface.GIDIndex = &f.gidIndex
		}
		cfg := config.Single(f.control, f.device, f.iface)
		return cfg, byFlag(cfg.Validate(), fs)
	}
	var err error
	f.one.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			err = fmt.Errorf("--%s and --config cannot be combined: set it in the file", flag.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(f.file)
	if err != nil || !fs.Changed("control") {
		return cfg, err
	}
	cfg.Control = f.control
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%s with --control %s: %w", f.file, f.control, err)
	}
	return cfg, nil
}

// byFlag names the flag of each mistake instead of the field.
func byFlag(err error, fs *pflag.FlagSet) error {
	mistakes, _ := errors.AsType[config.Mistakes](err)
	for _, m := range mistakes {
		name := strings.ReplaceAll(m.Field[strings.LastIndex(m.Field, ".")+1:], "_", "-")
		if name == "peers" {
			name = "peer"
		}
		if fs.Lookup(name) != nil {
			m.Field = "--" + name
		}
	}
	return err
}

// logFormat returns a function that creates the log's handler.
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
	return nil, fmt.Errorf("--log-format: %q is not one of text, json", format)
}
