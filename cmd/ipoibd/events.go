package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

type eventsFlags struct {
	control, iface, device string
	follow, json           bool
}

func eventsCommand() *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the history of recoveries: steps, reasons, durations, outages",
		Long: "Show the rungs that recoveries entered and why, and how each recovery ended: its\n" +
			"highest rung, its first reason, the time from detection to the end, and the\n" +
			"outage. The daemon keeps the last " + fmt.Sprint(journal.Size) + " entries.",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	bindControl(cmd, &f.control)
	cmd.Flags().BoolVar(&f.follow, "follow", false, "keep printing new entries until the daemon ends")
	cmd.Flags().BoolVar(&f.json, "json", false, "output as JSON, one object a line; durations in seconds")
	bindName(cmd, &f.iface, &f.control, "interface", "show only entries of this interface")
	bindName(cmd, &f.device, &f.control, "device", "show only entries of this device")
	return cmd
}

func (f *eventsFlags) run(cmd *cobra.Command) error {
	show := printEntry
	if f.json {
		show = func(out io.Writer, e journal.Entry) error { return json.NewEncoder(out).Encode(e) }
	}
	if err := f.check(cmd.Context()); err != nil {
		return err
	}
	var last uint64
	err := control.GetEvents(cmd.Context(), f.control, 0, f.follow, func(e journal.Entry) error {
		if last != 0 && e.Seq > last+1 {
			terminal.Fprintf(cmd.ErrOrStderr(), "%d entries were missed\n", e.Seq-last-1)
		}
		last = e.Seq
		if f.iface == "" && f.device == "" || e.Scope == f.iface || e.Scope == f.device {
			return show(cmd.OutOrStdout(), e)
		}
		return nil
	})
	if err == nil && f.follow {
		fmt.Fprintln(cmd.ErrOrStderr(), "the daemon has exited")
	}
	return err
}

// check fails if there is no interface or device of the given name. (Without it, a mistyped
// name would show neither entries nor an error.)
func (f *eventsFlags) check(ctx context.Context) error {
	if f.iface == "" && f.device == "" {
		return nil
	}
	s, err := control.GetStatus(ctx, f.control)
	switch {
	case err != nil:
		return err
	case f.iface != "" && !slices.ContainsFunc(s.Interfaces, func(i report.Interface) bool { return i.Name == f.iface }):
		return fmt.Errorf("there is no interface %q", f.iface)
	case f.device != "" && !slices.ContainsFunc(s.Devices, func(d report.Device) bool { return d.Name == f.device }):
		return fmt.Errorf("there is no device %q", f.device)
	}
	return nil
}

// timeFormat includes the zone, so that entries from hosts in different zones can be compared.
const timeFormat = "2006-01-02 15:04:05.000Z07:00"

// printEntry writes an entry as a line of columns. Each column is as wide as the longest
// possible name, since later entries are not known yet.
func printEntry(out io.Writer, e journal.Entry) error {
	_, err := terminal.Fprintf(out, "%s  %-8s  %-9s  %-15s  %s\n",
		e.Time.Local().Format(timeFormat), e.Scope, e.Kind, e.Rung, entryText(e))
	return err
}

func entryText(e journal.Entry) string {
	text := e.Reason
	if e.Kind == journal.KindRecovered || e.Kind == journal.KindStopped {
		text = fmt.Sprintf("%-19s  took %s, outage %s", e.Reason, short(time.Duration(e.Duration)), short(time.Duration(e.Outage)))
	}
	if text != "" && e.Text != "" {
		text += "; "
	}
	return text + e.Text
}

// short rounds a duration for display.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
