package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/qprecovery"
)

func resetCommand() *cobra.Command {
	var q control.ResetRequest
	verbs := map[string]string{
		control.ScopeQP:     "resetting the queue pair of ",
		control.ScopeCQ:     "rebuilding the completion queues and the queue pair of ",
		control.ScopeDevice: "resetting device ",
	}
	cmd := &cobra.Command{
		Use:   "reset qp|cq|device",
		Short: "Reset a queue pair, its completion queues, or a device",
		Long: "Reset the queue pair of an interface in place (qp), rebuild its completion queues\n" +
			"and its queue pair (cq), or reset a device for all of its interfaces (device).\n" +
			"ib0, its addresses and its routes stay.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("specify what to reset: qp, cq or device")
			}
			if q.Scope = args[0]; verbs[q.Scope] == "" {
				return fmt.Errorf("cannot reset %q: use qp, cq or device", q.Scope)
			}
			return nil
		},
		ValidArgs: []string{control.ScopeQP, control.ScopeCQ, control.ScopeDevice},
	}
	bindName(cmd, &q.Interface, "interface", "", "interface to reset, for qp and cq (default: the only one)")
	bindName(cmd, &q.Device, "device", "", "device to reset, for device (default: the only one)")
	return order(cmd, &q, func() (text, on string) {
		on = q.Interface + q.Device
		return verbs[q.Scope] + on, on
	})
}

func recoverCommand() *cobra.Command {
	var q control.RecoverRequest
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Retry a device that ipoibd has given up on",
		Long: "Retry a device that ipoibd has given up on. If the daemon waits for the device, or\n" +
			"pauses because the device failed too often, it tries the device at once. The command\n" +
			"fails if the device is open; use 'ipoibd reset device' to reset it.",
		Args: noArgs,
	}
	bindName(cmd, &q.Device, "device", "", "device to retry (default: the only one)")
	return order(cmd, &q, func() (text, on string) { return "retrying device " + q.Device, q.Device })
}

func suspendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "suspend",
		Short: "Close all devices until 'ipoibd resume'; interfaces stay but lose carrier",
		Args:  noArgs,
	}
	return order(cmd, &control.SuspendRequest{}, func() (text, on string) { return "all devices are closed", "" })
}

func resumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "resume", Short: "Open all devices again after 'ipoibd suspend'", Args: noArgs}
	return order(cmd, &control.ResumeRequest{}, func() (text, on string) { return "opening all devices", "" })
}

// order makes cmd send a request to the daemon. After that, the function done returns what to
// print and which device or interface the request concerned ("": all devices).
func order(cmd *cobra.Command, q control.Request, done func() (text, on string)) *cobra.Command {
	var wait time.Duration
	bindControl(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until the command has taken effect, for at most this long")
	cmd.Flags().Lookup("wait").NoOptDefVal = time.Minute.String()
	until := "the devices and interfaces concerned work again"
	if cmd.Name() == "suspend" {
		until = "all devices are closed"
	}
	cmd.Long = cmp.Or(cmd.Long, cmd.Short+".") + "\n\n" +
		"With --wait the command returns once " + until + ",\n" +
		"and fails if that takes longer than a minute, or than the DURATION of --wait=DURATION\n" +
		"(with '='). Without it, use 'ipoibd events' to see the outcome."
	cmd.Args = cobra.MatchAll(func(_ *cobra.Command, args []string) error {
		i := slices.IndexFunc(args, func(s string) bool { _, err := time.ParseDuration(s); return err == nil })
		if wait > 0 && i >= 0 {
			return fmt.Errorf("--wait takes its duration after '=': --wait=%s", args[i])
		}
		return nil
	}, cmd.Args)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if wait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, wait)
			defer cancel()
		}
		err := control.Post(ctx, socket(cmd), q)
		if err == nil {
			text, on := done()
			terminal.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			if wait > 0 {
				err = await(ctx, socket(cmd), on)
			}
		}
		if err != nil && ctx.Err() != nil && cmd.Context().Err() == nil && !errors.Is(err, control.ErrHangs) {
			return fmt.Errorf("not done within %s; still in progress: %w", wait, err)
		}
		return err
	}
	return cmd
}

// pollEvery is how often a waiting command requests the status. A request may appear in the
// status a moment after the daemon has accepted it.
const pollEvery = 50 * time.Millisecond

// await returns once no recovery of a device or an interface is under way, or ctx ends.
func await(ctx context.Context, path, on string) error {
	last := errors.New("no answer yet")
	for {
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pollEvery):
		}
		s, err := control.GetStatus(ctx, path)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil:
			return err
		}
		text, gaveUp := recovering(s, on)
		if text == "" {
			return nil
		}
		if last = errors.New(text); gaveUp {
			return last
		}
	}
}

// recovering describes a recovery under way on a device, its interfaces or an interface
// ("": on any), and reports whether the daemon has given up. A suspension does not count.
func recovering(s *report.Status, on string) (text string, gaveUp bool) {
	describe := func(name string, r *report.Recovery) string {
		return fmt.Sprintf("%s: %s (%s) because of %s", name, r.Rung, r.State, r.Reason)
	}
	suspended := map[string]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		r := d.Recovery
		switch {
		case r.Since.IsZero() || on != "" && on != d.Name:
		case r.State == qprecovery.DeviceSuspended.String():
			suspended[d.Name] = true
		case r.State == qprecovery.DeviceGivenUp.String():
			return describe(d.Name, r), true
		default:
			text = describe(d.Name, r)
		}
	}
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		matches := on == "" || on == f.Name || on == f.Device
		if text == "" && matches && !f.Recovery.Since.IsZero() && !suspended[f.Device] {
			text = describe(f.Name, f.Recovery)
		}
	}
	return text, false
}
