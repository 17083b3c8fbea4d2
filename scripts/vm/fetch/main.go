// Fetch brings the kernels for the guests of tests into the cache and says on
// its standard error what it does, which go test would keep to itself. Where
// they cannot be had it says why and exits with 0: the tests decide what that
// means.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ipoibd/scripts/vm/kernel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, series := range kernel.AllSeries {
		if _, err := kernel.Get(ctx, series, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "fetch:", err)
		}
	}
}
