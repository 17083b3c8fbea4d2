package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
)

// bindName adds the flag "interface" or "device", whose values are the names that the
// daemon knows.
// The shorthand may be empty.
func bindName(cmd *cobra.Command, into *string, flag, shorthand, usage string) {
	cmd.Flags().StringVarP(into, flag, shorthand, "", usage)
	completeFlag(cmd, flag, func() []string {
		names, _ := known(cmd, flag) // without a daemon, no name is completed
		return names
	})
}

// known returns the names of the daemon's interfaces ("interface") or devices ("device").
func known(cmd *cobra.Command, what string) (names []string, err error) {
	s, err := control.GetStatus(cmd.Context(), socket(cmd))
	if err != nil {
		return nil, err
	}
	for i := range s.Interfaces {
		if what == "interface" {
			names = append(names, s.Interfaces[i].Name)
		}
	}
	for i := range s.Devices {
		if what == "device" {
			names = append(names, s.Devices[i].Name)
		}
	}
	return names, nil
}

func netdevs() (names []string) {
	list, _ := net.Interfaces()
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names
}

func noInterface(name string) error {
	return fmt.Errorf("no interface %s; 'ipoibd status --brief' lists them", name)
}
