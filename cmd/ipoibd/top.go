package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/top"
)

// The shortest interval costs the daemon little, and the longest still looks alive.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Minute
)

func topCommand() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch throughput, drops, peers, recoveries and events",
		Long: "Watch throughput, drops, the depth of the send ring, peers, recoveries and events in a\n" +
			"terminal. Bytes and packets are counted by the kernel's interface, so RX is what the host\n" +
			"has received. If the daemon restarts, the display continues with the new one.\n\n" +
			"Keys: q quits, the arrows select an interface, p pauses. Set NO_COLOR to turn colours off.",
		PreRunE: func(*cobra.Command, []string) error {
			if interval < minInterval || interval > maxInterval {
				return fmt.Errorf("--interval: %s is not between %s and %s", interval, minInterval, maxInterval)
			}
			if _, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS); err != nil {
				return errors.New("standard output is not a terminal: use 'ipoibd status' or 'ipoibd events' instead")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			source := daemonAt(socket(cmd))
			if _, err := source.Status(cmd.Context()); err != nil {
				return err
			}
			_, err := tea.NewProgram(top.New(cmd.Context(), source, interval), tea.WithContext(cmd.Context())).Run()
			if errors.Is(err, tea.ErrInterrupted) { // SIGINT, which is a way to quit
				return nil
			}
			return err
		},
	}
	bindControl(cmd)
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two refreshes, from 100ms to 1m")
	return cmd
}

// daemonAt is the daemon behind a control socket. It implements top.Source.
type daemonAt string

func (path daemonAt) Status(ctx context.Context) (*report.Status, error) {
	return control.GetStatus(ctx, string(path))
}

func (path daemonAt) Events(ctx context.Context, since uint64) (entries []journal.Entry, err error) {
	err = control.GetEvents(ctx, string(path), since, false, func(e journal.Entry) error {
		entries = append(entries, e)
		return nil
	})
	return entries, err
}
