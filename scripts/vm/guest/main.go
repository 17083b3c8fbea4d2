package guest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/kernel"
)

// Environment variables for tests re-executed in their own namespaces: the architecture of the guests, and their kit's
// folder, or the reason why there is none.
const (
	archEnv    = "TEST_IPOIBD_VM_ARCH"
	kitEnv     = "TEST_IPOIBD_VM_KIT"
	missingEnv = "TEST_IPOIBD_VM_MISSING"
)

// Main creates the kit for guests of an architecture, runs the tests and returns their exit status.
func Main(m *testing.M, arch kernel.Arch) int {
	if os.Getenv(kitEnv) != "" {
		return m.Run()
	}
	_ = os.Setenv(archEnv, string(arch)) // fails only for invalid names
	dir, release, err := newKitDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer release()
	if err := offerKit(dir); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the guests:", err)
		return 1
	}
	return m.Run()
}

// offerKit creates the kit and passes its location, or the reason why it is missing,
// to the tests.
func offerKit(dir string) error {
	err := makeKit(context.Background(), dir, arch())
	if errors.Is(err, kernel.ErrMissing) {
		return os.Setenv(missingEnv, err.Error())
	}
	if err != nil {
		return err
	}
	return os.Setenv(kitEnv, dir)
}

// arch returns the architecture of this process's guests.
func arch() kernel.Arch { return kernel.Arch(os.Getenv(archEnv)) }

// Require skips a test with guests if they are not available; with CI=true in the environment the test fails.
func Require(t *testing.T) {
	t.Helper()
	if missing := os.Getenv(missingEnv); missing != "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	if os.Getenv(kitEnv) == "" {
		t.Fatal("no kit: TestMain must call guest.Main")
	}
}

// soak selects the long forms of the tests that have one.
var soak = flag.Bool("soak", false, "run the long forms")

// Soak reports whether the long forms of tests run.
func Soak() bool { return *soak }

// Enter is nstest.EnterAlone for tests with guests. It calls Require.
func Enter(t *testing.T) bool {
	t.Helper()
	Require(t)
	return nstest.EnterAlone(t)
}

// EnterBeside is Enter for a test with a single guest, which runs beside other such tests: as many as -parallel permits,
// one for each processor by default.
func EnterBeside(t *testing.T) bool {
	t.Helper()
	Require(t)
	return nstest.Enter(t)
}

// EachKernel runs a test as a subtest for each series of kernels, in parallel,
// because a guest waits most of the time.
func EachKernel(t *testing.T, test func(t *testing.T, series kernel.Series)) {
	t.Helper()
	KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		t.Parallel()
		test(t, series)
	})
}

// KernelsInTurn is EachKernel for tests that measure, or need two guests: it runs
// the subtests one after the other.
func KernelsInTurn(t *testing.T, test func(t *testing.T, series kernel.Series)) {
	t.Helper()
	for _, series := range kernel.AllSeries {
		onKernel(t, series, test)
	}
}

// NewestKernel is KernelsInTurn for tests of what the daemon does rather than of what the kernel offers to it: only the
// long form has the older kernels.
func NewestKernel(t *testing.T, test func(t *testing.T, series kernel.Series)) {
	t.Helper()
	if *soak {
		KernelsInTurn(t, test)
		return
	}
	onKernel(t, kernel.Newest, test)
}

func onKernel(t *testing.T, series kernel.Series, test func(t *testing.T, series kernel.Series)) {
	t.Helper()
	t.Run(string(series), func(t *testing.T) { test(t, series) })
}
