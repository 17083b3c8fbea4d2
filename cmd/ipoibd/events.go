package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

func eventsCommand() *cobra.Command {
	var iface, device string
	var follow, asJSON bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the history of recoveries: steps, reasons, durations, outages",
		Long: "Show the rungs that recoveries entered and why, and how each recovery ended: its\n" +
			"highest rung, its first reason, the time from detection to the end, and the\n" +
			"outage. The daemon keeps the last " + fmt.Sprint(journal.Size) + " entries, also in a file beside the\n" +
			"control socket, so they survive a restart of the daemon, but not of the machine.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A mistyped name would show neither entries nor an error.
			for _, c := range []struct{ what, name string }{{"interface", iface}, {"device", device}} {
				if c.name == "" {
					continue
				}
				if names, err := known(cmd, c.what); err != nil {
					return err
				} else if !slices.Contains(names, c.name) {
					return fmt.Errorf("there is no %s %q", c.what, c.name)
				}
			}
			show := printEntry
			if asJSON {
				show = func(out io.Writer, e journal.Entry) error { return json.NewEncoder(out).Encode(e) }
			}
			var last uint64
			err := control.GetEvents(cmd.Context(), socket(cmd), 0, follow, func(e journal.Entry) error {
				if last != 0 && e.Seq > last+1 {
					terminal.Fprintf(cmd.ErrOrStderr(), "%d entries were missed\n", e.Seq-last-1)
				}
				last = e.Seq
				if iface == "" && device == "" || e.Scope == iface || e.Scope == device {
					return show(cmd.OutOrStdout(), e)
				}
				return nil
			})
			if err == nil && last == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no entries")
			}
			if err == nil && follow {
				fmt.Fprintln(cmd.ErrOrStderr(), "the daemon has exited")
			}
			return err
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new entries until the daemon exits")
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON, one object a line; durations in seconds")
	bindName(cmd, &iface, "interface", "", "show only entries of this interface")
	bindName(cmd, &device, "device", "", "show only entries of this device")
	return cmd
}

// timeFormat includes the zone, so that entries from hosts in different zones can be compared.
const timeFormat = "2006-01-02 15:04:05.000Z07:00"

// printEntry writes an entry as a line of columns. Each column is as wide as the longest
// possible name, since later entries are not known yet.
func printEntry(out io.Writer, e journal.Entry) error {
	text := e.Reason
	if e.Kind == journal.KindRecovered || e.Kind == journal.KindStopped {
		took, outage := time.Duration(e.Duration), time.Duration(e.Outage)
		text = fmt.Sprintf("%-19s  took %s, outage %s", e.Reason, terminal.Short(took), terminal.Short(outage))
	}
	if text != "" && e.Text != "" {
		text += "; "
	}
	_, err := terminal.Fprintf(out, "%s  %-8s  %-9s  %-15s  %s\n",
		e.Time.Local().Format(timeFormat), e.Scope, e.Kind, e.Rung, text+e.Text)
	return err
}
