package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// cnitoolEnv passes the path of cnitool in the same way as daemonEnv.
const cnitoolEnv = "TEST_IPOIBD_E2E_CNITOOL"

// daemonEnv passes the path of the daemon to tests re-executed in their own
// namespaces.
const daemonEnv = "TEST_IPOIBD_E2E_DAEMON"

// soak selects the long forms of the tests that have one.
var soak = flag.Bool("soak", false, "run the long forms")

// fastPath gives the daemons of all tests a fast path, unless their arguments say otherwise.
var fastPath = flag.Bool("fast-path", false, "start every daemon with --fast-path")

// slowPath is the argument for daemons that must see all frames, or cannot have a fast path.
const slowPath = "--fast-path=false"

// form returns short in make test, and long in make soak.
func form[T any](short, long T) T {
	if *soak {
		return long
	}
	return short
}

func TestMain(m *testing.M) {
	if os.Getenv(intruderEnv) != "" {
		intrude()
	}
	if os.Getenv(daemonEnv) != "" {
		os.Exit(m.Run())
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ipoibd-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a folder for the daemon:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	for env, source := range map[string]string{daemonEnv: "ipoibd/cmd/ipoibd", cnitoolEnv: "github.com/containernetworking/cni/cnitool"} {
		program := filepath.Join(dir, filepath.Base(source))
		if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", source, err, out)
			return 1
		}
		if err := os.Setenv(env, program); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}
