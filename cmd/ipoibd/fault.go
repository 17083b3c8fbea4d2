package main

import (
	"errors"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca/faults"
)

func faultCommand() *cobra.Command {
	var path string
	var list bool
	var q control.FaultRequest
	cmd := &cobra.Command{
		Use:   "fault KIND",
		Short: "Inject a fault into a device, for tests",
		Long: "Inject a fault into a device, software or real, of a daemon that was started\n" +
			"with --allow-faults. Without --after it strikes at its next occasion: a send that\n" +
			"fails needs a frame to send, a verb that hangs needs 'ipoibd reset'.",
		Args:              func(_ *cobra.Command, args []string) error { return oneKind(args, list) },
		ValidArgsFunction: completeKind,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return listKinds(cmd.OutOrStdout())
			}
			if q.After < 0 || q.Count < 1 && cmd.Flags().Changed("count") {
				return errors.New("--after takes 0 or more, --count 1 or more")
			}
			q.Kind = args[0]
			done, err := control.PostFault(cmd.Context(), path, q)
			if err == nil {
				terminal.Fprintf(cmd.OutOrStdout(), "%s is set on device %s\n", done.Kind, done.Device)
			}
			return err
		},
	}
	bindControl(cmd, &path)
	bindFault(cmd, &q)
	cmd.Flags().BoolVar(&list, "list", false, "list the kinds")
	return cmd
}

func bindFault(cmd *cobra.Command, q *control.FaultRequest) {
	cmd.Flags().IntVar(&q.After, "after", 0, "occasions that pass before it strikes")
	cmd.Flags().IntVar(&q.Count, "count", 0, "occasions that it strikes (default 1)")
	cmd.Flags().StringVar(&q.Verb, "verb", "", "the verb that hangs, for verb_hangs and verb_hangs_forever: "+strings.Join(faults.Verbs(), ", ")+" (default: any)")
	cmd.Flags().StringVar(&q.Device, "device", "", "the device (default: the only one)")
}

func oneKind(args []string, list bool) error {
	switch {
	case list && len(args) > 0:
		return errors.New("--list takes no kind")
	case !list && len(args) != 1:
		return errors.New("fault takes one kind; 'ipoibd fault --list' has them")
	}
	return nil
}

func completeKind(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	for _, k := range control.FaultKinds() {
		if len(args) == 0 {
			out = append(out, cobra.CompletionWithDesc(k.Name, k.Text))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func listKinds(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, k := range control.FaultKinds() {
		terminal.Fprintf(w, "%s\t%s\n", k.Name, k.Text)
	}
	return w.Flush()
}
