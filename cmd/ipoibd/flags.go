package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/config"
)

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if _, err := strconv.ParseBool(args[0]); err == nil {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				hint = fmt.Sprintf(" if it is the value of --%s, write --%s=%s;", f.Name, f.Name, args[0])
			}
		})
	}
	return fmt.Errorf("%s takes no argument: %q;%s see '%s --help'", cmd.Name(), args[0], hint, cmd.CommandPath())
}

// flagMistake describes a mistake in the flags in plain words. (Without it, errors of strconv
// would be shown.)
func flagMistake(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = fmt.Errorf("--%s: %w", bad.GetFlag().Name, plainly(err))
	}
	return fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())
}

// plainly says which values a flag takes, if its value is wrong.
func plainly(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	wanted := map[string]string{
		"int": "a whole number", "uint8": "a whole number from 0 to 255", "bool": "true or false",
		"duration": "a duration, such as 30s or 10m",
	}[bad.GetFlag().Value.Type()]
	if wanted == "" {
		return bad.Unwrap()
	}
	return fmt.Errorf("%q is not %s", bad.GetValue(), wanted)
}

// bindControl adds the flag of a command that talks to a running daemon.
func bindControl(cmd *cobra.Command) {
	path := cmp.Or(os.Getenv(envPrefix+"CONTROL"), config.DefaultControl)
	cmd.Flags().String("control", path, "path of the control socket")
}

// socket returns the value of the flag that bindControl added.
func socket(cmd *cobra.Command) string { return cmd.Flag("control").Value.String() }

// completeFlag has the shell complete a flag with the given values.
func completeFlag(cmd *cobra.Command, flag string, values func() []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, completion(values)); err != nil {
		panic(err) // there is no such flag
	}
}

func completion(values func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	}
}
