package vm

import (
	"flag"
	"os"
	"testing"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// soak selects the long forms of the tests that have one.
var soak = flag.Bool("soak", false, "run the long forms")

func TestMain(m *testing.M) { os.Exit(guest.Main(m, kernel.AMD64)) }
