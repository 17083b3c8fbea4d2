package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

// printBrief prints a table of the interfaces, and one of the devices.
func printBrief(out io.Writer, s *report.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if len(s.Interfaces) > 0 {
		fmt.Fprintln(w, "INTERFACE\tSTATE\tMTU\tPEERS\tRX BYTES\tTX BYTES\tDROPS\tDEVICE\tLENT TO\tREASON")
	}
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		lent := "-"
		if f.Netns != "" {
			lent = filepath.Base(f.Netns) + ":" + cmp.Or(f.Netdev, f.Name)
		}
		terminal.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", f.Name, f.State, f.MTU, len(f.Peers),
			f.Traffic().RXBytes, f.Traffic().TXBytes, f.Drops, f.Device,
			lent, cmp.Or(f.Because(), "-"))
	}
	if len(s.Devices) > 0 {
		fmt.Fprintln(w, "\nDEVICE\tSTATE\tDROPS\tUNDERLAY\tREASON")
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		terminal.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n",
			d.Name, d.State, d.Drops, cmp.Or(d.Underlay, "-"), cmp.Or(because(d), "-"))
	}
	return w.Flush()
}
