package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca/rdma"
)

func devicesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the HCAs of this machine, and why one cannot be used",
		Long: "List what --device of 'ipoibd run' takes: the software HCA, on the netdev that it\n" +
			"would choose, and the RDMA devices of the kernel, each opened for a moment; with\n" +
			"their ports, the GIDs that --gid and --gid-index take, as index=address, and the\n" +
			"reasons why one cannot be used.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := backend.Local(openHCA).Take()
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(entries)
			}
			return printEntries(cmd.OutOrStdout(), entries)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// printEntries writes a line for each port, and below it what hinders its use.
func printEntries(out io.Writer, entries []backend.Entry) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tKIND\tPORT\tSTATE\tLINK LAYER\tON\tGIDS\tUSABLE")
	for i := range entries {
		e := &entries[i]
		if len(e.Ports) == 0 {
			terminal.Fprintf(w, "%s\t%s\t-\t-\t-\t%s\t-\tno\n", e.Name, e.Kind, place(e))
		}
		for _, p := range e.Ports {
			usable := yesNo(len(e.Trouble)+len(p.Trouble) == 0)
			terminal.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", e.Name, e.Kind, p.Num, p.State, p.LinkLayer, place(e), gidsText(p.GIDs), usable)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printTroubles(out, entries)
	return nil
}

// place is the netdev or the PCI function that a device is.
func place(e *backend.Entry) string {
	switch {
	case e.Netdev != "":
		return e.Netdev
	case e.PCIAddr != "":
		return e.PCIAddr
	}
	return "-"
}

// gidsText lists the GIDs that can be used, each with its index.
func gidsText(gids []rdma.GID) string {
	var out []string
	for _, g := range gids {
		if g.Usable() {
			out = append(out, fmt.Sprintf("%d=%s", g.Index, g.GID.Addr()))
		}
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ",")
}

func printTroubles(out io.Writer, entries []backend.Entry) {
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
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
