// Ipoibd is an IPoIB network interface daemon: a TAP interface whose Ethernet
// frames travel as RFC 4391 datagrams over an HCA's UD queue pairs.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/terminal"
)

// version is set by the linker.
var version = "devel"

func main() {
	root := rootCommand()
	root.SetOut(terminal.Writer{W: os.Stdout})
	root.SetErr(terminal.Writer{W: os.Stderr})
	if err := root.Execute(); err != nil {
		printError(os.Stderr, err)
		os.Exit(1)
	}
}

// printError prints the error with which the program ends.
func printError(out io.Writer, err error) {
	fmt.Fprintln(out, "ipoibd:", terminal.Lines(err.Error()))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "ipoibd",
		Short:         "IPoIB network interfaces in user space, over RoCEv2: a software HCA or a real one",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())
	})
	root.AddCommand(
		runCommand(), statusCommand(), devicesCommand(), eventsCommand(), deleteCommand(), versionCommand(),
		resetCommand(), recoverCommand(), suspendCommand(), resumeCommand(), faultCommand(),
	)
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	}
}
