package main

import (
	"errors"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca/faults"
)

func faultCommand() *cobra.Command {
	var list bool
	var q control.FaultRequest
	cmd := &cobra.Command{
		Use:   "fault KIND",
		Short: "Inject a fault into a device, for tests",
		Long: "Inject a fault into a device, software or real, of a daemon that was started\n" +
			"with --allow-faults. Without --after it strikes at the next opportunity: a failing\n" +
			"send needs a frame to send; a hanging verb needs a call, such as in 'ipoibd reset'.\n" +
			"The kind 'clear' cancels all faults that have not struck yet, and lets verbs held by\n" +
			"'verb_hangs' return.",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			for _, k := range control.FaultKinds() {
				if len(args) == 0 {
					out = append(out, cobra.CompletionWithDesc(k.Name, k.Text))
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case list && len(args) > 0:
			return errors.New("--list takes no kind")
		case !list && len(args) != 1:
			return errors.New("fault takes one kind; 'ipoibd fault --list' lists them")
		case q.After < 0 || q.Count < 1 && cmd.Flags().Changed("count"):
			return errors.New("--after takes 0 or more, --count 1 or more")
		}
		return nil
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		if list {
			w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			for _, k := range control.FaultKinds() {
				terminal.Fprintf(w, "%s\t%s\n", k.Name, k.Text)
			}
			return w.Flush()
		}
		q.Kind = args[0]
		if err := control.Post(cmd.Context(), socket(cmd), &q); err != nil {
			return err
		}
		if q.Kind == faults.Clear.String() {
			terminal.Fprintf(out, "pending faults of device %s cancelled\n", q.Device)
			return nil
		}
		terminal.Fprintf(out, "fault %s armed on device %s\n", q.Kind, q.Device)
		return nil
	}
	bindControl(cmd)
	cmd.Flags().IntVar(&q.After, "after", 0, "number of opportunities to skip before it strikes")
	cmd.Flags().IntVar(&q.Count, "count", 0, "number of times it strikes (default 1)")
	cmd.Flags().StringVar(&q.Verb, "verb", "",
		"the verb, for the kinds verb_*: "+strings.Join(faults.Verbs(), ", ")+" (default: any except open_device)")
	completeFlag(cmd, "verb", faults.Verbs)
	bindName(cmd, &q.Device, "device", "", "the device (default: the only one)")
	cmd.Flags().BoolVar(&list, "list", false, "list the kinds")
	return cmd
}
