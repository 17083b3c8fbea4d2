//go:build bench

package vm

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// compareLimit bounds the benchmarks in a guest: ten times their usual
// duration.
const compareLimit = 5 * time.Minute

// Runs the backends' benchmarks and perftest in one guest, and logs each result as
// a ratio to that of perftest on rxe.
func TestCompare(t *testing.T) {
	binary := guest.TestBinary(t, "ipoibd/scripts/vm/compare", "-tags=vm")
	if guest.Enter(t) {
		return
	}
	guest.KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		g := guest.Boot(t, guest.Spec{Series: series, Memory: 512})
		cable(g)
		addRxe(g, rxe0, cableA)
		addRxe(g, "rxe1", cableB)
		sent := perftest(t, g, "ib_send_bw", 1024) * 1e6
		oneWay := perftest(t, g, "ib_send_lat", 64, "-e")
		t.Logf("perftest: %.0f messages/s, %.1f us one way", sent, oneWay)
		for _, m := range benchmarks(t, g, binary) {
			base := sent
			if m.unit == "us/oneway" {
				base = oneWay
			}
			t.Logf("%-32s %10.1f %-10s %.2f of perftest's", m.name, m.value, m.unit, m.value/base)
		}
	})
}

// perftestPort is the port on which perftest's servers exchange parameters.
const perftestPort = ":18515"

// perftest runs both sides of a perftest program for UD and returns the result in
// its row: millions of messages per second, or the typical one-way time in
// microseconds.
func perftest(t *testing.T, g *guest.Guest, program string, size int, further ...string) float64 {
	t.Helper()
	args := append([]string{"-c", "UD", "-F", "-s", fmt.Sprint(size), "-x", "1"}, further...)
	server := inGuest{g}.start(program, append(args, "-d", "rxe1")...)
	eventually(t, program+" listens", func() bool { return strings.Contains(g.Run("ss", "-ltn"), perftestPort) })
	out := g.Run(program, append(args, "-d", rxe0, nstest.IPv4(1))...)
	awaitExit(t, server)
	column := 4 // of ib_send_lat: bytes, iterations, least, most, typical
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 5 && f[0] == fmt.Sprint(size) {
			return number(t, f[column]) // ib_send_bw: bytes, iterations, peak, average, rate
		}
	}
	t.Fatalf("%s has no row for %d bytes:\n%s", program, size, out)
	return 0
}

// measured is a figure of a benchmark.
type measured struct {
	name  string
	value float64
	unit  string
}

var benchLine = regexp.MustCompile(`(?m)^Benchmark(\S+)\s.*?([\d.e+]+) (msgs/s|us/oneway)`)

// benchmarks runs the benchmarks of a test binary in a guest.
func benchmarks(t *testing.T, g *guest.Guest, binary string) (all []measured) {
	t.Helper()
	const path = "/run/compare.test"
	g.PutFile(path, binary)
	env := []string{"TEST_IPOIBD_VERBS_A=" + rxe0, "TEST_IPOIBD_VERBS_B=rxe1"}
	p := g.StartEnv(env, path, "-test.run=^$", "-test.bench=.", "-test.benchtime=1s")
	result := p.Wait(compareLimit)
	for _, m := range benchLine.FindAllStringSubmatch(p.Stdout(), -1) {
		all = append(all, measured{m[1], number(t, m[2]), m[3]})
	}
	if !result.OK() || len(all) == 0 {
		t.Fatalf("the benchmarks failed: %v\n%s%s", result, p.Stdout(), p.Stderr())
	}
	return all
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
