// Fetch downloads the kernels for the guests of tests into the cache, compiles the module for tests on InfiniBand, and
// reports its progress on standard error, which go test would hide. If a kernel is not available, it prints the reason
// and exits with 0: the tests decide whether that is a failure.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ipoibd/scripts/vm/ibwire"
	"ipoibd/scripts/vm/kernel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, b := range kernel.AllBuilds {
		k, err := kernel.Get(ctx, b, os.Stderr)
		if err == nil && b.Arch == kernel.AMD64 {
			_, err = kernel.BuildModule(ctx, k, ibwire.Name, ibwire.Source, os.Stderr)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "fetch:", err)
		}
	}
}
