package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
)

// manuals are the pages for users, with the least number of commands that each shows.
var manuals = map[string]int{
	"README.md": 8, "docs/recovery.md": 8, "docs/hardware.md": 4, "docs/config.md": 4, "docs/security.md": 1, "docs/interface.md": 0, "docs/counters.md": 2, "docs/operations.md": 8, "docs/containers.md": 1,
	"docs/monitoring.md": 10,
}

func readManual(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commands returns the calls of ipoibd in a page, in command lines and in code spans.
// A call ends at a comment or at the next command.
func commands(page string) (calls [][]string) {
	for _, m := range regexp.MustCompile("(?m)(?:^ {4,}(?:.*&& )?|^|`|')ipoibd ([a-z][^`'&#|\n]*)").FindAllStringSubmatch(page, -1) {
		calls = append(calls, strings.Fields(m[1]))
	}
	return calls
}

// Every command in the manuals exists and accepts the flags and arguments shown there.
func TestManualsShowCommandsThatExist(t *testing.T) {
	for page, least := range manuals {
		calls := commands(readManual(t, page))
		for _, call := range calls {
			if err := accepts(call); err != nil {
				t.Errorf("%s: ipoibd %s: %v", page, strings.Join(call, " "), err)
			}
		}
		if t.Logf("%s: %d commands", page, len(calls)); len(calls) < least {
			t.Errorf("%s: found %d commands, want %d at least: does the expression still match?", page, len(calls), least)
		}
	}
}

// accepts checks a call without running it. It ignores an ellipsis.
func accepts(call []string) error {
	call = slices.DeleteFunc(slices.Clone(call), func(s string) bool { return s == "..." })
	root := rootCommand()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, args, err := root.Find(call)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if words := cmd.Flags().Args(); len(words) > 0 || len(args) > 0 {
		return cmd.ValidateArgs(words)
	}
	return nil
}

// Every flag and every fault named in the manuals exists.
func TestManualsNameFlagsThatExist(t *testing.T) {
	known := map[string]bool{} // also flags of docker and podman
	for _, flag := range []string{"--cap-drop", "--device", "--network", "--runtime", "--tmpfs", "--ulimit", "--user"} {
		known[flag] = true
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	found := 0
	for page := range manuals {
		for _, m := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(readManual(t, page), -1) {
			if found++; !known[m[1]] {
				t.Errorf("%s: there is no flag %s", page, m[1])
			}
		}
	}
	if t.Logf("%d flags", found); found < 40 {
		t.Error("found less than 40 flags: does the expression still match?")
	}
	var faults []string
	for _, k := range control.FaultKinds() {
		faults = append(faults, k.Name)
	}
	named := regexp.MustCompile(`ipoibd fault ([a-z_]+)`).FindAllStringSubmatch(readManual(t, "docs/recovery.md"), -1)
	if t.Logf("%d faults", len(named)); len(named) == 0 {
		t.Error("found no fault: does the expression still match?")
	}
	for _, m := range named {
		if !slices.Contains(faults, m[1]) {
			t.Errorf("there is no fault %s", m[1])
		}
	}
}

// The example configurations are valid.
func TestManualsShowValidConfigurations(t *testing.T) {
	found := 0
	for path := range manuals {
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readManual(t, path), -1) {
			found++
			if _, err := config.Parse(path, []byte(m[1])); err != nil {
				t.Errorf("%v\n%s", err, m[1])
			}
		}
	}
	if found != 2 {
		t.Errorf("found %d examples, want 2", found)
	}
}

// docs/config.md has every flag of run, those that set no field with their defaults. TestManPages compares the fields.
func TestReferenceHasTheFlags(t *testing.T) {
	text, _, _ := strings.Cut(readManual(t, "docs/config.md"), "## Fields of a file")
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([^`]+)` \\| ([^|]*) ?\\|").FindAllStringSubmatch(text, -1) {
		defaults[m[1]] = strings.Trim(m[2], "` ")
	}
	_, list, _ := strings.Cut(text, "These flags set the")
	runCommand().Flags().VisitAll(func(f *pflag.Flag) {
		doc, ok := defaults[f.Name]
		if setsField := strings.Contains(list, "`--"+f.Name+"`"); !setsField && (!ok || doc != f.DefValue) {
			t.Errorf("--%s: documented %t with the default %q, want %q", f.Name, ok, doc, f.DefValue)
		}
	})
}
