package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/doctor"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

// maxWatch bounds how long doctor watches the counters.
const maxWatch = time.Minute

// problems is the error of doctor if it has found some.
type problems int

func (p problems) Error() string {
	if p == 1 {
		return "1 problem"
	}
	return fmt.Sprintf("%d problems", int(p))
}

func doctorCommand() *cobra.Command {
	f := newRunFlags()
	var asJSON bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong or missing, and what to do about it",
		Long: "Find what is wrong or missing on this machine and in the running daemon, the most\n" +
			"important first, each with its evidence and what to do. The command changes nothing, and\n" +
			"prints nothing if all is well.\n\n" +
			"Without a daemon, it examines what 'ipoibd run' would need with the same flags, variables\n" +
			"and file. With one, it examines the interfaces and devices of the daemon, and watches their\n" +
			"counters for a moment, so run it while the traffic in question is being sent.\n\n" +
			"Exit codes: 0 there are no problems, at most hints; 1 something could not be examined, but\n" +
			"no problem was found; 2 a mistake in the command line; 3 there are problems. The output of\n" +
			"--json conforms to docs/doctor.schema.json.",
		Args: noArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if watch < 0 || watch > maxWatch {
				return fmt.Errorf("--watch: %s is not between 0 and %s", watch, maxWatch)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := doctor.Query{Version: daemonVersion(cmd), Watch: watch, OpenRDMA: openRDMA}
			settings, err := f.read(cmd.Flags())
			q.Config, q.UnknownVariables, q.Mistake, q.Control = settings.cfg, settings.unknown, err, f.own.Control
			if q.Config != nil {
				q.Control = q.Config.Control
			}
			return examine(cmd.Context(), cmd.OutOrStdout(), q, asJSON)
		},
	}
	f.bind(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON")
	cmd.Flags().DurationVar(&watch, "watch", 2*time.Second,
		"how long to watch the counters of a running daemon, at most 1m")
	return cmd
}

// examine prints what is wrong, and returns problems if it is more than hints.
func examine(ctx context.Context, out io.Writer, q doctor.Query, asJSON bool) error {
	facts, unseen := doctor.Gather(ctx, q)
	if unseen != nil {
		unseen = fmt.Errorf("cannot examine everything: %w", unseen)
	}
	found := diagnose.Diagnose(&facts)
	if asJSON {
		if err := printJSON(out, doctor.NewReport(&facts, found)); err != nil {
			return err
		}
	} else {
		for _, x := range found {
			printFinding(out, x)
		}
	}
	if n := diagnose.Problems(found); n > 0 {
		if unseen != nil {
			return fmt.Errorf("%w; %w", problems(n), unseen)
		}
		return problems(n)
	}
	return unseen
}

func printFinding(out io.Writer, x diagnose.Finding) {
	subject := ""
	if x.Subject != "" {
		subject = x.Subject + ": "
	}
	line := func(label, text string) { terminal.Fprintf(out, "%-10s%s\n", label, text) }
	line(string(x.Severity), fmt.Sprintf("%s%s (%s)", subject, x.What, x.ID))
	label := "  because"
	for text := range strings.SplitSeq(x.Evidence, "\n") {
		line(label, text)
		label = ""
	}
	line("  do", x.Advice)
	if x.Command != "" {
		line("", x.Command)
	}
}
