package vm

import (
	"os"
	"testing"

	"ipoibd/scripts/vm/guest"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }
