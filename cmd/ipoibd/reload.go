package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

func reloadCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Apply the daemon's configuration file",
		Long: "Apply the daemon's configuration file as it is now, without touching devices and interfaces\n" +
			"that do not change. The command prints what was done with each: kept, changed, rebuilt\n" +
			"(another one took its place), added or removed.\n\n" +
			"If the file has mistakes, nothing changes; the command prints them and exits with 2.\n" +
			"If a change failed in part, it exits with 1.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var q control.ReloadRequest
			if err := control.Post(cmd.Context(), socket(cmd), &q); err != nil {
				return err
			}
			print := printReload
			if asJSON {
				print = func(cmd *cobra.Command, r report.Reload) error { return printJSON(cmd.OutOrStdout(), r) }
			}
			return errors.Join(print(cmd, q.Reload), incomplete(q.Reload))
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON")
	return cmd
}

func printReload(cmd *cobra.Command, r report.Reload) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	for _, o := range r.Devices {
		terminal.Fprintf(w, "device %s\t%s\n", o.Name, o)
	}
	for _, o := range r.Interfaces {
		terminal.Fprintf(w, "interface %s\t%s\n", o.Name, o)
	}
	return w.Flush()
}

// incomplete returns an error if something could not be done completely, or nil.
func incomplete(r report.Reload) error {
	if err := r.Err(); err != nil {
		return fmt.Errorf("the file was only partly applied: %w", err)
	}
	return nil
}
