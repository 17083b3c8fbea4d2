package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// report prints what is not as it should be, in full, then the table and the
// totals.
func report(out io.Writer, results []result) error {
	var text strings.Builder
	var counts [numVerdict]int
	for _, r := range results {
		counts[r.verdict]++
		if r.detail != "" {
			fmt.Fprintf(&text, "%s: %v\n%s\n", r.name, r.verdict, strings.TrimSpace(r.detail))
		}
	}
	writeTable(&text, results)
	fmt.Fprintf(&text, "%d of %d mutants killed\n", counts[killed], len(results))
	_, err := io.WriteString(out, text.String())
	return err
}

// writeTable writes a line for each test that must fail; what is about its
// mutant stands in the first one.
func writeTable(out io.Writer, results []result) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "requirement\tverdict\tseconds\tbroken\tits tests")
	for _, r := range results {
		head := fmt.Sprintf("R%d\t%v\t%.1f\t%s", r.requirement, r.verdict, r.took.Seconds(), r.breaks)
		for _, t := range r.tests {
			fmt.Fprintf(table, "%s\t%s\n", head, t.name)
			head = "\t\t\t"
		}
	}
	_ = table.Flush() // the builder behind it takes everything
}
