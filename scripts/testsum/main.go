package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
)

// maxLine bounds one line of input in bytes: go test cuts its output into lines
// and these are those of the tests.
const maxLine = 16 << 20

func main() {
	noSkips := flag.Bool("no-skips", false, "fail when a test was skipped")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *noSkips); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

// run summarizes in on out; its error says why the run is not a success.
func run(in io.Reader, out io.Writer, noSkips bool) error {
	var s Summary
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if _, err := io.WriteString(out, s.Step(lines.Bytes())); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	text, totals := s.Close()
	if _, err := fmt.Fprintf(out, "%s%v\n", text, totals); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return totals.Verdict(noSkips)
}
