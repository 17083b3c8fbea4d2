package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// daemonEnv passes the path of the daemon to tests re-executed in their own
// namespaces.
const daemonEnv = "TEST_IPOIBD_E2E_DAEMON"

// soak selects the long forms of the tests that have one.
var soak = flag.Bool("soak", false, "run the long forms")

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
	daemon := filepath.Join(dir, "ipoibd")
	out, err := exec.Command("go", "build", "-o", daemon, "ipoibd/cmd/ipoibd").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the daemon: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv(daemonEnv, daemon); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
