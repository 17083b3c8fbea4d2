package vm

import (
	"os"
	"testing"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m, kernel.AMD64)) }
