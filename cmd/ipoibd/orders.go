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
	scopes := []string{control.ScopeQP, control.ScopeCQ, control.ScopeDevice}
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
			if !slices.Contains(scopes, args[0]) {
				return fmt.Errorf("cannot reset %q: use qp, cq or device", args[0])
			}
			return nil
		},
		ValidArgs: scopes,
	}
	path := order(cmd, func(ctx context.Context, path string, args []string) (text, on string, err error) {
		q.Scope = args[0]
		done, err := control.PostReset(ctx, path, q)
		text = map[string]string{
			control.ScopeQP: "resetting the queue pair of ", control.ScopeCQ: "rebuilding the completion queues and the queue pair of ", control.ScopeDevice: "resetting device ",
		}[q.Scope]
		return text + done.Interface + done.Device, done.Interface + done.Device, err
	})
	bindName(cmd, &q.Interface, path, "interface", "interface to reset, for qp and cq (default: the only one)")
	bindName(cmd, &q.Device, path, "device", "device to reset, for device (default: the only one)")
	return cmd
}

func recoverCommand() *cobra.Command {
	var q control.RecoverRequest
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Retry a device that ipoibd has given up on",
		Long: "Retry a device that ipoibd has given up on. If the daemon waits for the device, or\n" +
			"pauses because the device failed too often, it tries the device at once. The command\n" +
			"fails if the device is open; use 'ipoibd reset device' to reset it.",
	}
	path := order(cmd, func(ctx context.Context, path string, _ []string) (text, on string, err error) {
		done, err := control.PostRecover(ctx, path, q)
		return "retrying device " + done.Device, done.Device, err
	})
	bindName(cmd, &q.Device, path, "device", "device to retry (default: the only one)")
	return cmd
}

func suspendCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "suspend", Short: "Close all devices until 'ipoibd resume'; interfaces stay but lose carrier"}
	order(cmd, func(ctx context.Context, path string, _ []string) (text, on string, err error) {
		return "all devices are closed", "", control.PostSuspend(ctx, path)
	})
	return cmd
}

func resumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "resume", Short: "Open all devices again after 'ipoibd suspend'"}
	order(cmd, func(ctx context.Context, path string, _ []string) (text, on string, err error) {
		return "opening all devices", "", control.PostResume(ctx, path)
	})
	return cmd
}

// defaultWait is how long --wait waits if it is given without a value.
const defaultWait = time.Minute

// order makes cmd send a request to the daemon. The function post sends it, and returns what
// to print and which device or interface the request concerns ("": all devices). The result
// points to the path of the control socket, which is set once flags are parsed.
func order(cmd *cobra.Command, post func(ctx context.Context, path string, args []string) (text, on string, err error)) (path *string) {
	path = new(string)
	var wait time.Duration
	bindControl(cmd, path)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until the command has taken effect, for at most this long")
	cmd.Flags().Lookup("wait").NoOptDefVal = defaultWait.String()
	until := "the devices and interfaces concerned work again"
	if cmd.Name() == "suspend" {
		until = "all devices are closed"
	}
	cmd.Long = cmp.Or(cmd.Long, cmd.Short+".") + "\n\n" +
		"With --wait the command returns once " + until + ",\n" +
		"and fails if that takes longer than a minute, or than the DURATION of --wait=DURATION\n" +
		"(with '='). Without it, use 'ipoibd events' to see the outcome."
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if wait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, wait)
			defer cancel()
		}
		text, on, err := post(ctx, *path, args)
		if err == nil {
			terminal.Fprintf(cmd.OutOrStdout(), "%s\n", text)
		}
		if err == nil && wait > 0 {
			err = await(ctx, *path, on)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("not done within %s; the daemon continues: %w", wait, err)
		}
		return err
	}
	return path
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
	describe := func(name string, r *report.Recovery) {
		text = fmt.Sprintf("%s: %s (%s) because of %s", name, r.Rung, r.State, r.Reason)
	}
	suspended := map[string]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if r := d.Recovery; r == nil || r.Since.IsZero() || on != "" && on != d.Name {
			continue
		} else if r.State == qprecovery.DeviceSuspended.String() {
			suspended[d.Name] = true
		} else if describe(d.Name, r); r.State == qprecovery.DeviceGivenUp.String() {
			return text, true
		}
	}
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		if r := f.Recovery; text == "" && r != nil && !r.Since.IsZero() && !suspended[f.Device] && (on == "" || on == f.Name || on == f.Device) {
			describe(f.Name, r)
		}
	}
	return text, false
}
