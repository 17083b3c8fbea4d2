package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version. The linker sets commit.
const release = "0.9.0"

var commit = "unknown"

// daemonVersion is the version of a daemon that this program runs.
func daemonVersion(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.Root().Version, "ipoibd ")
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
