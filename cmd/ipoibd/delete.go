package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ipoibd/link"
)

func deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an interface that a daemon left behind",
		Args:  oneName,
		RunE:  func(_ *cobra.Command, args []string) error { return deleteInterface(args[0]) },
	}
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("delete takes the name of one interface, as in 'ipoibd delete ib0'")
	}
	return nil
}

func deleteInterface(name string) error {
	err := link.Delete(name)
	if errors.Is(err, link.ErrOwned) {
		return fmt.Errorf("%w: stop it first", err)
	}
	return err
}
