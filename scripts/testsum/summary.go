package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Reasons why a run is not a success; Verdict returns one.
var (
	errFailed  = errors.New("tests failed")
	errNoTests = errors.New("no test ran")
	errSkipped = errors.New("tests were skipped")
)

// Totals are counts of tests, subtests included.
type Totals struct {
	Passed, Failed, Skipped int
}

func (t Totals) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.Passed, t.Failed, t.Skipped)
}

// Verdict says whether these totals are a success.
func (t Totals) Verdict(noSkips bool) error {
	switch {
	case t.Failed > 0:
		return errFailed
	case t.Passed+t.Skipped == 0:
		return errNoTests
	case noSkips && t.Skipped > 0:
		return errSkipped
	}
	return nil
}

// Summary turns events into text and totals. Its zero value is ready for use.
type Summary struct {
	totals   Totals
	packages map[string]*testPackage     // those that have started and not ended
	builds   map[string]*strings.Builder // output of builds by import path
}

// testPackage is a package whose tests run.
type testPackage struct {
	totals Totals
	output map[string]*strings.Builder // by test; the package's own under ""
}

// Step takes one line of input and returns what there is to print, with its
// line ends.
func (s *Summary) Step(line []byte) string {
	e, ok := parseEvent(line)
	if !ok {
		return string(line) + "\n"
	}
	switch e.Action {
	case "build-output":
		s.build(e.ImportPath).WriteString(e.Output)
	case "start", "run", "output":
		s.pkg(e.Package).test(e.Test).WriteString(e.Output)
	case "pass", "fail", "skip":
		return s.end(e)
	}
	return ""
}

// Close ends the input: whatever has not ended yet never will, and counts as
// failed.
func (s *Summary) Close() (string, Totals) {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		text.WriteString(s.endPackage(event{Action: "fail", Package: name}))
	}
	return text.String(), s.totals
}

func (s *Summary) end(e event) string {
	if e.Test != "" {
		return s.endTest(e)
	}
	return s.endPackage(e)
}

// endTest counts a test and returns what it wrote unless it passed.
func (s *Summary) endTest(e event) string {
	p := s.pkg(e.Package)
	output := p.test(e.Test).String()
	delete(p.output, e.Test)
	switch e.Action {
	case "pass":
		p.totals.Passed++
		return ""
	case "skip":
		p.totals.Skipped++
	default:
		p.totals.Failed++
	}
	return fmt.Sprintf("%-5s %s %s\n%s", strings.ToUpper(e.Action), e.Package, e.Test, indent(output))
}

// endPackage adds up a package and returns its line, after its own output where
// it failed without a failed test. Tests under way end with it.
func (s *Summary) endPackage(e event) string {
	p := s.pkg(e.Package)
	details := s.endRunning(e.Package)
	delete(s.packages, e.Package)
	if e.Action == "fail" && p.totals.Failed == 0 {
		p.totals.Failed++
		details = indent(s.build(e.FailedBuild).String() + p.test("").String())
	}
	s.totals = s.totals.plus(p.totals)
	if e.Action == "skip" {
		return "" // no test files
	}
	return details + packageLine(e, p.totals)
}

// endRunning fails the tests of a package that have begun and not ended: a
// timeout or the death of their process gives no event for each.
func (s *Summary) endRunning(name string) string {
	var text strings.Builder
	for _, test := range slices.Sorted(maps.Keys(s.pkg(name).output)) {
		if test != "" {
			text.WriteString(s.endTest(event{Action: "fail", Package: name, Test: test}))
		}
	}
	return text.String()
}

func packageLine(e event, t Totals) string {
	result := "ok"
	if t.Failed > 0 {
		result = "FAIL"
	}
	return fmt.Sprintf("%-5s %-44s %5d tests %8.2fs\n", result, e.Package, t.Passed+t.Failed+t.Skipped, e.Elapsed)
}

func (t Totals) plus(u Totals) Totals {
	return Totals{t.Passed + u.Passed, t.Failed + u.Failed, t.Skipped + u.Skipped}
}

func (s *Summary) pkg(name string) *testPackage {
	if s.packages == nil {
		s.packages = make(map[string]*testPackage)
	}
	p := s.packages[name]
	if p == nil {
		p = &testPackage{output: make(map[string]*strings.Builder)}
		s.packages[name] = p
	}
	return p
}

func (s *Summary) build(path string) *strings.Builder {
	if s.builds == nil {
		s.builds = make(map[string]*strings.Builder)
	}
	return builder(s.builds, path)
}

func (p *testPackage) test(name string) *strings.Builder { return builder(p.output, name) }

func builder(m map[string]*strings.Builder, key string) *strings.Builder {
	if m[key] == nil {
		m[key] = new(strings.Builder)
	}
	return m[key]
}

// indent sets output apart from the lines of the summary.
func indent(output string) string {
	if output = strings.TrimRight(output, "\n"); output == "" {
		return ""
	}
	return "      " + strings.ReplaceAll(output, "\n", "\n      ") + "\n"
}
