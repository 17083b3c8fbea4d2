package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
)

// manuals are the pages for users.
var manuals = []string{"../../README.md", "../../docs/recovery.md"}

func readManual(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commands returns the calls of ipoibd in a page, in command lines and in code spans.
// A call ends at a comment or at the next command.
func commands(page string) (calls [][]string) {
	for _, m := range regexp.MustCompile("(?m)(?:^    (?:.*&& )?|^|`|')ipoibd ([a-z][^`'&#\n]*)").FindAllStringSubmatch(page, -1) {
		calls = append(calls, strings.Fields(m[1]))
	}
	return calls
}

// Every command in the manuals exists and accepts the flags and arguments shown there.
func TestManualsShowCommandsThatExist(t *testing.T) {
	for _, path := range manuals {
		calls := commands(readManual(t, path))
		for _, call := range calls {
			if err := accepts(call); err != nil {
				t.Errorf("%s: ipoibd %s: %v", path, strings.Join(call, " "), err)
			}
		}
		if t.Logf("%s: %d commands", path, len(calls)); len(calls) < 8 {
			t.Errorf("%s: found %d commands, want 8 at least: does the expression still match?", path, len(calls))
		}
	}
}

// accepts checks a call without running it. It ignores an ellipsis.
func accepts(call []string) error {
	call = slices.DeleteFunc(slices.Clone(call), func(s string) bool { return s == "..." })
	cmd, args, err := rootCommand().Find(call)
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
	known := map[string]bool{"--ulimit": true} // of docker
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	for _, path := range manuals {
		named := regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(readManual(t, path), -1)
		if t.Logf("%s: %d flags", path, len(named)); len(named) == 0 {
			t.Errorf("%s: found no flag: does the expression still match?", path)
		}
		for _, m := range named {
			if !known[m[1]] {
				t.Errorf("%s: there is no flag %s", path, m[1])
			}
		}
	}
	var faults []string
	for _, k := range control.FaultKinds() {
		faults = append(faults, k.Name)
	}
	named := regexp.MustCompile(`ipoibd fault ([a-z_]+)`).FindAllStringSubmatch(readManual(t, manuals[1]), -1)
	if t.Logf("%s: %d faults", manuals[1], len(named)); len(named) == 0 {
		t.Errorf("%s: found no fault: does the expression still match?", manuals[1])
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
	for _, path := range manuals {
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readManual(t, path), -1) {
			found++
			if _, err := config.Parse(path, []byte(m[1])); err != nil {
				t.Errorf("%v\n%s", err, m[1])
			}
		}
	}
	if found != 3 {
		t.Errorf("found %d examples, want 3", found)
	}
}

// The device settings in docs/recovery.md are the defaults, as the page says.
func TestManualShowsDefaults(t *testing.T) {
	_, text, _ := strings.Cut(readManual(t, manuals[1]), "```yaml\n")
	text, rest, _ := strings.Cut(text, "```")
	if !strings.Contains(rest, "These are the defaults.") {
		t.Error("the page no longer says that these are the defaults")
	}
	c, err := config.Parse("recovery.md", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for i, hca := range []string{config.SoftHCA, "rxe0"} {
		want, got := config.NewDevice(), c.Devices[i]
		want.Name, want.HCA, want.Underlay = hca, hca, got.Underlay
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the page shows %+v, the default is %+v", got, want)
		}
	}
}
