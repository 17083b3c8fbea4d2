package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/link"
)

func deleteCommand() *cobra.Command {
	var ifExists bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an interface that a daemon left behind, or that was added at run time",
		Long: "Delete an interface that a daemon left behind. If a daemon answers on the control\n" +
			"socket, and the interface was added to it at run time, the daemon removes it.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("delete takes the name of one interface, as in 'ipoibd delete ib0'")
			}
			return nil
		},
		ValidArgsFunction: completion(netdevs),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := &control.RemoveRequest{Interface: args[0]}
			if control.Post(cmd.Context(), socket(cmd), q) == nil {
				return q.Err()
			}
			switch err := link.Delete(args[0]); {
			case errors.Is(err, link.ErrOwned):
				return fmt.Errorf("%w: stop it first", err)
			case ifExists && errors.Is(err, link.ErrNotFound):
				return nil
			default:
				return err
			}
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "succeed if there is no such interface")
	return cmd
}
