package main

import (
	"github.com/spf13/cobra"

	"ipoibd/link"
)

func deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an interface that a daemon left behind",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return link.Delete(args[0]) },
	}
}
