package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/cni"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca/verbs"
)

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

// printJSON prints the output of --json.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
