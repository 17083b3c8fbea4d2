package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

var errNoMatch = errors.New("no contender matches -only")

// run measures the selected contenders in all rounds, until the context ends. It writes a line
// for each to progress.
func (r *report) run(ctx context.Context, progress io.Writer, dir string, wanted *regexp.Regexp) error {
	all := contenders(dir)
	todo := r.plan(all, wanted)
	if len(todo)+len(r.Missing) == 0 {
		return errNoMatch
	}
	for round := r.done + 1; round <= r.Rounds; round++ {
		for _, row := range order(todo, round) {
			if ctx.Err() != nil {
				return nil
			}
			fmt.Fprintf(progress, "round %d of %d: %-18s", round, r.Rounds, row.name())
			i := slices.IndexFunc(all, func(c contender) bool { return c.name == row.Contender })
			t := try(ctx, all[i], row.MTU, dir)
			if ctx.Err() != nil {
				fmt.Fprintln(progress, " interrupted")
				return nil
			}
			fmt.Fprintln(progress, t)
			r.add(row, round, t)
		}
	}
	return nil
}

// plan returns the rows to measure, by MTU. It adds the rows that the report does not have yet,
// and the missing contenders, to the report.
func (r *report) plan(all []contender, wanted *regexp.Regexp) (todo []row) {
	for _, c := range all {
		for _, mtu := range c.mtus {
			row := row{Contender: c.name, MTU: mtu}
			if !wanted.MatchString(row.name()) {
				continue
			}
			if why := c.missing(); why != "" {
				r.Missing[c.name] = why
				continue
			}
			todo = append(todo, row)
			if r.find(row.Contender, row.MTU) < 0 {
				r.Rows = append(r.Rows, row)
			}
		}
	}
	byMTU := func(a, b row) int { return cmp.Compare(a.MTU, b.MTU) }
	slices.SortStableFunc(todo, byMTU)
	slices.SortStableFunc(r.Rows, byMTU)
	return todo
}

// order returns the rows in the order of a round. Rounds count from 1; every second one is
// reversed.
func order(rows []row, round int) []row {
	rows = slices.Clone(rows)
	if round%2 == 0 {
		slices.Reverse(rows)
	}
	return rows
}

// add adds the result of a round to a row.
func (r *report) add(to row, round int, t *trial) {
	row := &r.Rows[r.find(to.Contender, to.MTU)]
	row.Rounds = append(row.Rounds, t.figures)
	for _, failure := range t.failures {
		row.Failures = append(row.Failures, fmt.Sprintf("round %d: %s", round, failure))
	}
}

// try measures a contender on new hosts.
func try(ctx context.Context, c contender, mtu int, dir string) *trial {
	t := &trial{figures: figures{}}
	t.a, t.b = twoHosts(dir)
	err := create(ctx, t.a, t.b)
	if err == nil {
		t.daemons, err = c.join(ctx, t.a, t.b, mtu)
	}
	if err == nil {
		t.measure(ctx)
	} else {
		for _, p := range t.daemons {
			err = p.explain(err)
		}
		t.failures = append(t.failures, err.Error())
	}
	for _, p := range t.daemons {
		p.stop()
	}
	if err := errors.Join(t.a.remove(), t.b.remove()); err != nil {
		t.failures = append(t.failures, err.Error())
	}
	return t
}

// String returns the figures in one line, and below it the failures.
func (t *trial) String() string {
	var s strings.Builder
	for _, c := range columns {
		s.WriteString(" " + c.cell(row{Rounds: []figures{t.figures}}))
	}
	for _, failure := range t.failures {
		s.WriteString("\n    " + failure)
	}
	return s.String()
}
