package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

func resetCommand() *cobra.Command {
	var path string
	var q control.ResetRequest
	cmd := &cobra.Command{
		Use:   "reset qp|cq|device",
		Short: "Reset a queue pair, its completion queues, or a device",
		Long: "Reset the queue pair of an interface in place (qp), rebuild its completion queues\n" +
			"and its queue pair (cq), or reset a device for all of its interfaces (device).\n" +
			"ib0, its addresses and its routes stay. 'ipoibd events' shows how it ended.",
		Args:      oneScope,
		ValidArgs: []string{control.ScopeQP, control.ScopeCQ, control.ScopeDevice},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Scope = args[0]
			done, err := control.PostReset(cmd.Context(), path, q)
			if err == nil {
				terminal.Fprintf(cmd.OutOrStdout(), "resetting %s\n", resetTarget(done))
			}
			return err
		},
	}
	bindControl(cmd, &path)
	cmd.Flags().StringVar(&q.Interface, "interface", "", "interface to reset, for qp and cq (default: the only one)")
	cmd.Flags().StringVar(&q.Device, "device", "", "device to reset, for device (default: the only one)")
	return cmd
}

func oneScope(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("reset takes what to reset: qp, cq or device")
	}
	if !slices.Contains(cmd.ValidArgs, args[0]) {
		return fmt.Errorf("there is no reset of %q: qp, cq or device", args[0])
	}
	return nil
}

func resetTarget(q control.ResetRequest) string {
	switch q.Scope {
	case control.ScopeQP:
		return "the queue pair of " + q.Interface
	case control.ScopeCQ:
		return "the completion queues and the queue pair of " + q.Interface
	}
	return "device " + q.Device
}

func recoverCommand() *cobra.Command {
	var path string
	var q control.RecoverRequest
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Retry a device that was given up",
		Long: "Retry a device that was given up. If the daemon waits for the device, or pauses\n" +
			"because it failed too often, the device is tried at once. The command fails if the\n" +
			"device is open; use 'ipoibd reset device' to reset it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := control.PostRecover(cmd.Context(), path, q)
			if err == nil {
				terminal.Fprintf(cmd.OutOrStdout(), "device %s is being tried again\n", done.Device)
			}
			return err
		},
	}
	bindControl(cmd, &path)
	cmd.Flags().StringVar(&q.Device, "device", "", "the device (default: the only one)")
	return cmd
}

func suspendCommand() *cobra.Command {
	return plainOrder("suspend", "Close all devices, until resume; the interfaces stay, without carrier", "all devices are closed", control.PostSuspend)
}

func resumeCommand() *cobra.Command {
	return plainOrder("resume", "Open all devices again after suspend", "all devices are being opened", control.PostResume)
}

// plainOrder is a command that is all said by its name.
func plainOrder(name, short, done string, post func(context.Context, string) error) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := post(cmd.Context(), path)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), done)
			}
			return err
		},
	}
	bindControl(cmd, &path)
	return cmd
}
