package main

import (
	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/config"
)

// bindControl gives a command that speaks to a running daemon its --control.
func bindControl(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "control", config.DefaultControl, "path of the control socket")
}
