package arm64

import (
	"os"
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m, kernel.ARM64)) }

// limit bounds the tests in the guest: several times their duration on an idle machine.
const limit = 8 * time.Minute

func TestBPF(t *testing.T) {
	binary := guest.TestBinary(t, "ipoibd/bpf")
	guest.Require(t)
	g := guest.Boot(t, guest.Spec{Series: kernel.Newest, CPUs: 2})
	g.RunTests(t, binary, limit, nil, "-test.skip=^TestGeneratedFilesAreCurrent$", "-packets=1000")
}
