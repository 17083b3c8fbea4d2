package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

func devicesCommand() *cobra.Command {
	var asJSON bool
	var underlay string
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the HCAs, and why any cannot be used",
		Long: "List what --device of 'ipoibd run' accepts: the software HCA, on the netdev that it\n" +
			"would choose or that --underlay names, and the kernel's RDMA devices. The list shows\n" +
			"their ports, the GIDs that --gid and --gid-index accept (index=address), and why any\n" +
			"cannot be used. Each device is opened briefly.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := backend.Local(openRDMA, underlay).Take()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), entries)
			}
			return printEntries(cmd.OutOrStdout(), entries)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON")
	cmd.Flags().StringVar(&underlay, "underlay", "",
		"netdev of the software HCA (default: the netdev of the default route)")
	completeFlag(cmd, "underlay", netdevs)
	return cmd
}

// printEntries writes a line for each port, and below the table why any cannot be used.
func printEntries(out io.Writer, entries []backend.Entry) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tKIND\tPORT\tSTATE\tLINK LAYER\tON\tGIDS\tUSABLE")
	for i := range entries {
		e := &entries[i]
		place := cmp.Or(e.Netdev, e.PCIAddr, "-")
		if len(e.Ports) == 0 {
			terminal.Fprintf(w, "%s\t%s\t-\t-\t-\t%s\t-\tno\n", e.Name, e.Kind, place)
		}
		for _, p := range e.Ports {
			var gids []string
			for _, g := range p.GIDs {
				if g.Usable() {
					gids = append(gids, fmt.Sprintf("%d=%s", g.Index, g.GID.Addr()))
				}
			}
			usable := "yes"
			if len(e.Trouble)+len(p.Trouble) > 0 {
				usable = "no"
			}
			terminal.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n",
				e.Name, e.Kind, p.Num, p.State, p.LinkLayer, place, cmp.Or(strings.Join(gids, ","), "-"), usable)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		for _, t := range e.Trouble {
			terminal.Fprintf(out, "%s: %s\n", e.Name, t)
		}
		for _, p := range e.Ports {
			for _, t := range p.Trouble {
				terminal.Fprintf(out, "%s port %d: %s\n", e.Name, p.Num, t)
			}
		}
		if len(e.Users) > 0 {
			terminal.Fprintf(out, "%s is in use by %s\n", e.Name, strings.Join(e.Users, ", "))
		}
	}
	return nil
}
