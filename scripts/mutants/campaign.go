package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

var errBaseline = errors.New("tests do not pass")

// campaign is a run over all mutants.
type campaign struct {
	work     string // temporary folder
	base     string // the tree without a patch, in it
	mutants  []mutant
	parallel int
	log      io.Writer
}

// result is what became of a mutant.
type result struct {
	mutant
	verdict verdict
	took    time.Duration
	detail  string // for people, unless it was killed
}

// prepare copies the tree in the working directory into work and reads the
// patches whose names match.
func prepare(ctx context.Context, work string, wanted *regexp.Regexp) (*campaign, error) {
	c := &campaign{work: work, base: filepath.Join(work, "base")}
	if err := snapshot(ctx, ".", c.base); err != nil {
		return nil, fmt.Errorf("copy the tree: %w", err)
	}
	all, err := load(os.DirFS(c.base))
	if err != nil {
		return nil, err
	}
	c.mutants = slices.DeleteFunc(all, func(m mutant) bool { return !wanted.MatchString(m.name) })
	if len(c.mutants) == 0 {
		return nil, errNoMutants
	}
	return c, nil
}

// baseline runs every test that a patch names, without one: all must pass.
func (c *campaign) baseline(ctx context.Context) error {
	var tests []test
	for _, m := range c.mutants {
		tests = append(tests, m.tests...)
	}
	fmt.Fprintf(c.log, "%d mutants; their tests without a patch ...", len(c.mutants))
	start := time.Now()
	o := goTest(ctx, c.base, tests, strconv.Itoa(c.parallel), testLimit)
	fmt.Fprintf(c.log, " %.1fs\n", time.Since(start).Seconds())
	if bad := o.notPassed(tests); len(bad) > 0 {
		return fmt.Errorf("%w: %v\n%s", errBaseline, bad, o.output.String())
	}
	return nil
}

// tryAll tries all mutants, in the order of their names, and tells of each as
// it ends.
func (c *campaign) tryAll(ctx context.Context) []result {
	results := make([]result, len(c.mutants))
	turns, ended := make(chan int), make(chan int)
	var workers sync.WaitGroup
	for range c.parallel {
		workers.Go(func() {
			for i := range turns {
				results[i] = c.try(ctx, c.mutants[i])
				ended <- i
			}
		})
	}
	go func() {
		for i := range c.mutants {
			turns <- i
		}
		close(turns)
		workers.Wait()
		close(ended)
	}()
	c.tell(ended, results)
	return results
}

// tell prints a line for each result as it comes.
func (c *campaign) tell(ended <-chan int, results []result) {
	count := 0
	for i := range ended {
		count++
		r := &results[i]
		fmt.Fprintf(c.log, "%d/%d %s: %v, %.1fs\n", count, len(results), r.name, r.verdict, r.took.Seconds())
	}
}

// try applies a patch to a copy of the tree and runs the tests that must fail.
func (c *campaign) try(ctx context.Context, m mutant) result {
	start := time.Now()
	r := result{mutant: m, verdict: stale}
	dir := filepath.Join(c.work, m.name)
	defer os.RemoveAll(dir)
	err := os.CopyFS(dir, os.DirFS(c.base))
	if err == nil {
		err = apply(ctx, dir, m.file())
	}
	if err != nil {
		r.detail = err.Error()
		return r
	}
	o := goTest(ctx, dir, m.tests, "1", testLimit)
	r.took, r.verdict = time.Since(start), o.judgeTests(m.tests)
	if r.verdict != killed {
		r.detail = o.output.String()
	}
	return r
}
