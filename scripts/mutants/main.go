package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// testLimit bounds the tests of one patch. They take seconds; a patch may make one
// of them wait for ever.
const testLimit = 2 * time.Minute

// patches is where the patches are, from the root of the module.
const patches = "scripts/mutants/testdata"

var (
	errNoPatch   = errors.New("no patch matches")
	errNotKilled = errors.New("not all mutants were killed")
	errHead      = errors.New("the head needs one Breaks line, " +
		"and a Test line with package and test for each test that shows the requirement")
)

// verdict is what a patch showed of its tests; doc.go lists them.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "survived"
	unclear  verdict = "unclear"
	stale    verdict = "stale"
)

func main() {
	only := flag.String("run", "", "try only the patches whose names match this `regexp`")
	flag.Parse()
	root, err := os.Getwd()
	if err == nil {
		err = run(os.Stdout, root, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run tries the patches of the tree at root, an absolute path, and prints a line for each, after the
// output of the tests unless the mutant was killed.
func run(out io.Writer, root, only string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	mutants, err := load(root)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	tried, dead := 0, 0
	for _, m := range mutants {
		if !wanted.MatchString(m.name) {
			continue
		}
		start := time.Now()
		v, output := m.try(root, filepath.Join(work, m.name))
		tried++
		if v == killed {
			dead++
		} else {
			fmt.Fprintf(out, "%s\n", strings.TrimSpace(output))
		}
		fmt.Fprintf(out, "%-8s  %5.1fs  %s: %s\n", v, time.Since(start).Seconds(), m.name, m.breaks)
	}
	fmt.Fprintf(out, "%d of %d mutants killed\n", dead, tried)
	switch {
	case tried == 0:
		return errNoPatch
	case dead < tried:
		return errNotKilled
	}
	return nil
}

// mutant is a patch.
type mutant struct {
	name   string // of its file, without the extension
	breaks string
	tests  []test
	files  []string // that it changes, from the root
	text   string
}

// test is a test, or a subtest, that must fail.
type test struct {
	pkg, name string
}

var (
	breaksLine = regexp.MustCompile(`(?m)^Breaks: (.+)\.$`)
	testLine   = regexp.MustCompile(`(?m)^Test: (\S+) (\S+)$`)
	fileLine   = regexp.MustCompile(`(?m)^--- a/(\S+)`)
)

// load reads the patches of the tree at root.
func load(root string) (all []mutant, err error) {
	paths, err := filepath.Glob(filepath.Join(root, patches, "*.patch"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m := mutant{name: strings.TrimSuffix(filepath.Base(path), ".patch"), text: string(text)}
		head, _, _ := strings.Cut(m.text, "\n--- ")
		if breaks := breaksLine.FindStringSubmatch(head); breaks != nil {
			m.breaks = breaks[1]
		}
		for _, t := range testLine.FindAllStringSubmatch(head, -1) {
			m.tests = append(m.tests, test{t[1], t[2]})
			if requirement, _, _ := strings.Cut(m.name, "-"); !strings.Contains(t[2], requirement) {
				return nil, fmt.Errorf("%s: %s: %w", path, t[2], errHead)
			}
		}
		for _, f := range fileLine.FindAllStringSubmatch(m.text, -1) {
			m.files = append(m.files, f[1])
		}
		lines := strings.Count(strings.TrimSpace(head), "\n")
		if m.breaks == "" || len(m.tests) == 0 || lines != len(m.tests) {
			return nil, fmt.Errorf("%s: %w", path, errHead)
		}
		all = append(all, m)
	}
	return all, err
}

// try runs the tests of a patch without it, where all must pass, and with it. Folder
// is an empty one for it.
func (m *mutant) try(root, folder string) (v verdict, output string) {
	overlay, err := m.apply(root, folder)
	if err != nil {
		return stale, err.Error()
	}
	v = killed
	for _, t := range m.tests {
		if passes, _, output := t.run(root); !passes {
			return unclear, output
		}
		passes, fails, text := t.run(root, "-overlay="+overlay)
		output += text
		switch {
		case passes:
			return survived, output
		case !fails:
			v = unclear
		}
	}
	return v, output
}

// apply applies the patch to copies, in folder, of the files that it changes, and
// returns the path of an overlay that puts them in the place of the files.
func (m *mutant) apply(root, folder string) (overlay string, err error) {
	replace := map[string]string{}
	for _, file := range m.files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = filepath.Join(folder, file)
		err = os.MkdirAll(filepath.Join(folder, filepath.Dir(file)), 0o755)
		if err := errors.Join(err, os.WriteFile(filepath.Join(folder, file), text, 0o644)); err != nil {
			return "", err
		}
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = folder, strings.NewReader(m.text)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("git apply: %w: %s", err, output)
	}
	overlay = filepath.Join(folder, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	return overlay, errors.Join(err, os.WriteFile(overlay, text, 0o644))
}

// run runs one test and reports whether it ended, and how: a test that was skipped,
// not built, not found or stopped by the time limit neither passes nor fails.
func (t test) run(root string, flags ...string) (passes, fails bool, output string) {
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.name), "/", "$/^") + "$"
	args := append([]string{"test", "-v", "-vet=off", "-timeout=" + testLimit.String(), "-run=" + pattern}, flags...)
	cmd := exec.Command("go", append(args, t.pkg)...)
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	ended := func(how string) bool {
		return regexp.MustCompile(`(?m)^ *--- ` + how + `: ` + regexp.QuoteMeta(t.name) + ` \(`).Match(text)
	}
	return err == nil && ended("PASS"), ended("FAIL"), string(text)
}
