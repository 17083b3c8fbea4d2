package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite docs/man, and the tables of docs/config.md")

// The man pages in docs/man are those of this version: ipoibd(8) is made from the commands, and
// ipoibd.yaml(5) from docs/config.md.
func TestManPages(t *testing.T) {
	for name, page := range map[string]string{"ipoibd.8": commandsPage(), "ipoibd.yaml.5": filePage(reference(t))} {
		section := name[strings.LastIndex(name, ".")+1:]
		title := strings.ToUpper(strings.TrimSuffix(name, "."+section))
		version, date := newest(t)
		head := fmt.Sprintf("%% %q %q %q %q %q\n", title, section, date, "ipoibd "+version, "ipoibd")
		made, path := manual(head+page), "../../docs/man/"+name
		if *update {
			if err := os.WriteFile(path, made, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if stored, err := os.ReadFile(path); err != nil || string(stored) != string(made) {
			t.Errorf("%s is not up to date (%v): run 'make man'", path, err)
		}
	}
}

// manual renders Markdown, without trailing spaces and empty lines.
func manual(page string) []byte {
	text := string(md2man.Render([]byte(page)))
	text = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(text, "")
	return []byte(regexp.MustCompile(`\n{2,}`).ReplaceAllString(text, "\n"))
}

// newest returns the newest version of the changelog, with its date.
func newest(t *testing.T) (version, date string) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^## (\S+) - (\d{4}-\d\d-\d\d)$`).FindStringSubmatch(readManual(t, "docs/CHANGELOG.md"))
	if m == nil {
		t.Fatal("the changelog has no version")
	}
	return m[1], m[2]
}

func TestVersionIsInTheChangelog(t *testing.T) {
	if version, _ := newest(t); version != release {
		t.Errorf("the newest version of the changelog is %s, that of the program %s", version, release)
	}
}

// commandsPage is ipoibd(8).
func commandsPage() string {
	root, page := rootCommand(), &strings.Builder{}
	intro, codes, _ := strings.Cut(root.Long, "Exit codes: ")
	fmt.Fprintf(page, "# NAME\nipoibd - %s\n\n# SYNOPSIS\n**ipoibd** *COMMAND* [*FLAGS*]\n\n# DESCRIPTION\n%s\n# COMMANDS\n", lowerFirst(root.Short), literal(intro))
	for _, cmd := range root.Commands() {
		describe(page, cmd)
	}
	for _, s := range []struct{ title, text string }{
		{"EXIT STATUS", codes},
		{"ENVIRONMENT", "Each flag of **ipoibd run** names its variable, if it has one. A flag takes precedence over its variable. **ipoibd doctor** takes the same flags and variables. The other commands use only IPOIBD_CONTROL."},
		{"FILES", "/etc/default/ipoibd\n:   environment of ipoibd.service\n\n/run/ipoibd/control.sock\n:   control socket"},
		{"SEE ALSO", "**ipoibd.yaml**(5), **systemd.exec**(5), and the pages in /usr/share/doc/ipoibd"},
	} {
		fmt.Fprintf(page, "# %s\n%s\n\n", s.title, s.text)
	}
	return page.String()
}

// describe adds a command and its flags.
func describe(page *strings.Builder, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(page, "## %s\n%s\n\n", cmd.UseLine(), literal(text))
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			value = " *" + value + "*"
		}
		short := ""
		if f.Shorthand != "" {
			short = "**-" + f.Shorthand + "**, "
		}
		fmt.Fprintf(page, "%s**--%s**%s\n:   %s%s%s\n\n", short, f.Name, value, literal(usage), defaultOf(f), variableOf(cmd, f))
	})
}

// literal escapes what Markdown would take for markup.
func literal(text string) string {
	return regexp.MustCompile(`[*_<>\[\]]`).ReplaceAllString(text, `\$0`)
}

func lowerFirst(s string) string {
	if strings.HasPrefix(s, "IPoIB") {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// defaultOf returns the default of a flag, unless its usage says it or it is what one expects.
func defaultOf(f *pflag.Flag) string {
	if strings.Contains(f.Usage, "(default") || strings.Contains("||false|0|0s|[]|", "|"+f.DefValue+"|") {
		return ""
	}
	return " (default " + literal(f.DefValue) + ")"
}

// variableOf returns the variable that stands for a flag.
func variableOf(cmd *cobra.Command, f *pflag.Flag) string {
	name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
	if cmd.Name() != "run" || injected(name) {
		return ""
	}
	return ". Variable: " + literal(name)
}

// filePage is ipoibd.yaml(5), from the manual's section on fields. Rows of its tables become
// items.
func filePage(config string) string {
	_, fields, _ := strings.Cut(config, "## Fields of a file\n")
	fields, _, _ = strings.Cut(fields, "\n## ")
	page := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*?) ?\\| (.*) \\|$").ReplaceAllStringFunc(fields, func(row string) string {
		cells := regexp.MustCompile("^\\| `(\\w+)` \\| (.*?) ?\\| (.*) \\|$").FindStringSubmatch(row)
		meaning, condition, _ := strings.Cut(cells[3], " |")
		if condition != "" {
			meaning += ";" + condition
		}
		if cells[2] != "" {
			meaning += " (default: " + cells[2] + ")"
		}
		return fmt.Sprintf("**%s**\n:   %s\n", cells[1], meaning)
	})
	page = regexp.MustCompile(`(?m)^\|.*\n`).ReplaceAllString(page, "")
	page = regexp.MustCompile("(?m)^Each of `(\\w+)`:$").ReplaceAllString(page, "## Each of $1")
	page = strings.Replace(page, "```yaml", "# EXAMPLE\n```", 1)
	return "# NAME\nipoibd.yaml - configuration of ipoibd with several devices or interfaces\n\n# DESCRIPTION\n" +
		"A YAML file, which **ipoibd run --config** reads, or IPOIBD\\_CONFIG names.\n" + page +
		"\n# SEE ALSO\n**ipoibd**(8), and config.md in /usr/share/doc/ipoibd for the sections named above\n"
}
