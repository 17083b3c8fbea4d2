package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/cni"
)

// calledByRuntime reports whether a container runtime has started this program as a CNI plugin:
// without arguments, and with its command in the environment.
func calledByRuntime() bool { return len(os.Args) == 1 && os.Getenv("CNI_COMMAND") != "" }

func installCNICommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install-cni DIRECTORY",
		Short: "Install this program as the CNI plugin ipoibd",
		Long: "Copy this program into the directory of the container runtime's CNI plugins, usually\n" +
			"/opt/cni/bin, under the name ipoibd. It creates the directory, and replaces an earlier\n" +
			"copy atomically.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("install-cni takes one directory, as in 'ipoibd install-cni /opt/cni/bin'")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return cni.Install(args[0]) },
	}
}
