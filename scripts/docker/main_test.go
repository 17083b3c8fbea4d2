package docker

import (
	"flag"
	"os"
	"testing"
)

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
	os.Exit(m.Run())
}
