package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/cni"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca/verbs"
	"ipoibd/link"
)

// release is the version. The linker sets commit.
const release = "0.9.0"

var commit = "unknown"

// openRDMA opens an RDMA device of the kernel by its name.
var openRDMA = verbs.Open

func main() {
	root := rootCommand()
	if calledByRuntime() {
		cni.Main("CNI plugin " + root.Version)
		return
	}
	root.SetOut(terminal.Writer{W: os.Stdout})
	root.SetErr(terminal.Writer{W: os.Stderr})
	code, err := execute(context.Background(), root)
	if err != nil {
		printError(os.Stderr, err)
	}
	os.Exit(code)
}

// Exit codes.
const (
	exitFailure  = 1
	exitUsage    = 2 // the command line or the configuration file is wrong
	exitNotReady = 3 // no daemon answers, status --check found an interface that is not up, or doctor a problem
)

// execute runs a command. An error before its RunE counts as a usage error.
func execute(ctx context.Context, root *cobra.Command) (code int, err error) {
	started := false
	for _, cmd := range root.Commands() {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			started = true
			return run(cmd, args)
		}
	}
	err = root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0, nil
	case !started:
		return exitUsage, err
	case errors.Is(err, control.ErrMistake):
		return exitUsage, err
	case errors.Is(err, control.ErrNotRunning), errors.Is(err, control.ErrHangs),
		errors.As(err, new(diagnose.Unready)), errors.As(err, new(problems)):
		return exitNotReady, err
	}
	return exitFailure, err
}

// printError prints the error that ends the program.
func printError(out io.Writer, err error) {
	fmt.Fprintln(out, "ipoibd:", terminal.Lines(err.Error()))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "ipoibd",
		Short: "IPoIB network interfaces in user space, over RoCEv2: a software HCA or a real one",
		Long: "IPoIB network interfaces in user space, over RoCEv2: a software HCA or a real one.\n\n" +
			"Exit codes: 0 success; 1 failure; 2 a mistake in the command line or in the\n" +
			"configuration file; 3 no daemon answers on the control socket, an interface is not up\n" +
			"(status --check), or there are problems (doctor).",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagMistake)
	root.AddCommand(
		runCommand(), doctorCommand(), bugReportCommand(), statusCommand(), topCommand(), peersCommand(),
		devicesCommand(), eventsCommand(), deleteCommand(), versionCommand(), captureCommand(), pingCommand(),
		resetCommand(), recoverCommand(), suspendCommand(), resumeCommand(), faultCommand(), reloadCommand(),
		installCNICommand(),
	)
	for _, cmd := range root.Commands() {
		if cmd.Args == nil {
			cmd.Args, cmd.ValidArgsFunction = noArgs, cobra.NoFileCompletions
		}
	}
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if _, err := strconv.ParseBool(args[0]); err == nil {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				hint = fmt.Sprintf(" if it is the value of --%s, write --%s=%s;", f.Name, f.Name, args[0])
			}
		})
	}
	return fmt.Errorf("%s takes no argument: %q;%s see '%s --help'", cmd.Name(), args[0], hint, cmd.CommandPath())
}

// flagMistake describes a mistake in the flags in plain words. (Without it, errors of strconv
// would be shown.)
func flagMistake(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = fmt.Errorf("--%s: %w", bad.GetFlag().Name, plainly(err))
	}
	return fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())
}

// plainly says which values a flag takes, if its value is wrong.
func plainly(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	wanted := map[string]string{
		"int": "a whole number", "uint8": "a whole number from 0 to 255", "bool": "true or false",
		"duration": "a duration, such as 30s or 10m",
	}[bad.GetFlag().Value.Type()]
	if wanted == "" {
		return bad.Unwrap()
	}
	return fmt.Errorf("%q is not %s", bad.GetValue(), wanted)
}

// version returns, say, "ipoibd 0.9.0 (539e721, go1.26.0, cgo: verbs)".
func version() string {
	backends := "no cgo: software HCA only"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "CGO_ENABLED" && s.Value == "1" {
				backends = "cgo: verbs"
			}
		}
	}
	return fmt.Sprintf("ipoibd %s (%s, %s, %s)", release, commit, runtime.Version(), backends)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, and how the program was built",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cmd.Root().Version)
			return err
		},
	}
}

func deleteCommand() *cobra.Command {
	var ifExists bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an interface that a daemon left behind, or that was added at run time",
		Long: "Delete an interface that a daemon left behind. If a daemon answers on the control\n" +
			"socket, and the interface was added to it at run time, the daemon removes it.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("delete takes the name of one interface, as in 'ipoibd delete ib0'")
			}
			return nil
		},
		ValidArgsFunction: completion(netdevs),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := &control.RemoveRequest{Interface: args[0]}
			if control.Post(cmd.Context(), socket(cmd), q) == nil {
				return q.Err()
			}
			switch err := link.Delete(args[0]); {
			case errors.Is(err, link.ErrOwned):
				return fmt.Errorf("%w: stop it first", err)
			case ifExists && errors.Is(err, link.ErrNotFound):
				return nil
			default:
				return err
			}
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "succeed if there is no such interface")
	return cmd
}

// bindControl adds the flag of a command that talks to a running daemon.
func bindControl(cmd *cobra.Command) {
	path := cmp.Or(os.Getenv(envPrefix+"CONTROL"), config.DefaultControl)
	cmd.Flags().String("control", path, "path of the control socket")
}

// socket returns the value of the flag that bindControl added.
func socket(cmd *cobra.Command) string { return cmd.Flag("control").Value.String() }

// bindName adds the flag "interface" or "device", whose values are the names that the
// daemon knows.
// The shorthand may be empty.
func bindName(cmd *cobra.Command, into *string, flag, shorthand, usage string) {
	cmd.Flags().StringVarP(into, flag, shorthand, "", usage)
	completeFlag(cmd, flag, func() []string {
		names, _ := known(cmd, flag) // without a daemon, no name is completed
		return names
	})
}

// known returns the names of the daemon's interfaces ("interface") or devices ("device").
func known(cmd *cobra.Command, what string) (names []string, err error) {
	s, err := control.GetStatus(cmd.Context(), socket(cmd))
	if err != nil {
		return nil, err
	}
	for i := range s.Interfaces {
		if what == "interface" {
			names = append(names, s.Interfaces[i].Name)
		}
	}
	for i := range s.Devices {
		if what == "device" {
			names = append(names, s.Devices[i].Name)
		}
	}
	return names, nil
}

// completeFlag has the shell complete a flag with the given values.
func completeFlag(cmd *cobra.Command, flag string, values func() []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, completion(values)); err != nil {
		panic(err) // there is no such flag
	}
}

func completion(values func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	}
}

func netdevs() (names []string) {
	list, _ := net.Interfaces()
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names
}

// printJSON prints the output of --json.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
