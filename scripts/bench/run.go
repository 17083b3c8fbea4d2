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

// run measures the wanted contenders in all rounds, until the context ends. progress gets a
// line for each.
func (r *report) run(ctx context.Context, progress io.Writer, dir string, wanted *regexp.Regexp) error {
	all := map[string]contender{}
	var todo []row
	for _, c := range contenders(dir) {
		all[c.name] = c
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
		}
	}
	if len(todo)+len(r.Missing) == 0 {
		return errNoMatch
	}
	slices.SortStableFunc(todo, func(a, b row) int { return cmp.Compare(a.MTU, b.MTU) })
	for _, row := range todo {
		if r.find(row.Contender, row.MTU) < 0 {
			r.Rows = append(r.Rows, row)
		}
	}
	for round := r.done + 1; round <= r.Rounds; round++ {
		order := slices.Clone(todo)
		if round%2 == 0 {
			slices.Reverse(order)
		}
		for _, row := range order {
			if ctx.Err() != nil {
				return nil
			}
			fmt.Fprintf(progress, "round %d of %d: %-18s", round, r.Rounds, row.name())
			t := try(ctx, all[row.Contender], row.MTU, dir)
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
	fail := func(err error) {
		if err != nil {
			t.failures = append(t.failures, err.Error())
		}
	}
	var err error
	if t.a, t.b, err = newHosts(ctx, dir); err != nil {
		fail(err)
		return t
	}
	defer func() {
		for _, p := range t.daemons {
			p.stop()
		}
		fail(t.a.remove())
		fail(t.b.remove())
	}()
	t.daemons, err = c.join(ctx, t.a, t.b, mtu)
	if err != nil {
		for _, p := range t.daemons {
			err = p.explain(err)
		}
		fail(err)
		return t
	}
	t.measure(ctx)
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
