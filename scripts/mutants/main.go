package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// testLimit bounds the tests of one patch in one package. They take seconds; one
// that a patch makes wait for ever ends by it.
const testLimit = 2 * time.Minute

var (
	errNoMutants = errors.New("no patch matches")
	errNotKilled = errors.New("not all mutants were killed")
)

func main() {
	only := flag.String("run", "", "take the patches alone whose names match this `regexp`")
	parallel := flag.Int("parallel", 2, "try so many patches at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, os.Stderr, *only, *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run tries the patches of the tree in the working directory. The table goes to
// out, progress to log.
func run(ctx context.Context, out, log io.Writer, only string, parallel int) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	c, err := prepare(ctx, work, wanted)
	if err != nil {
		return err
	}
	c.parallel, c.log = parallel, log
	if err := c.baseline(ctx); err != nil {
		return fmt.Errorf("without a patch: %w", err)
	}
	results := c.tryAll(ctx)
	if err := report(out, results); err != nil {
		return err
	}
	return judge(results)
}

// judge says whether the results are a success.
func judge(results []result) error {
	for _, r := range results {
		if r.verdict != killed {
			return errNotKilled
		}
	}
	return nil
}
