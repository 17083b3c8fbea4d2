package iface

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// seedEnv marks a process that runs a storm of that seed and prints what
// the ladders decided.
const seedEnv = "TEST_IPOIBD_STORM_SEED"

// mostStorms bounds how many storms of a seed are tried until two are alike. On a busy machine,
// the scheduler preempts a goroutine that has run for 10 ms, or takes the processor from one that
// is in a system call. If several events happen at that instant, the seed does not determine their
// order.
const mostStorms = 10

// The seed of a storm determines all decisions of the ladders of interfaces and devices, and their
// times.
func TestR10SeedReproducesDecisions(t *testing.T) {
	if seed := os.Getenv(seedEnv); seed != "" {
		tellStorm(t, seed)
		return
	}
	if testing.Short() {
		t.Skip("it builds these tests again")
	}
	bin := buildStorm(t)
	if bytes.Equal(reproduce(t, bin, 1), reproduce(t, bin, 2)) {
		t.Error("another seed, but the same decisions")
	}
}

// buildStorm builds these tests without the race detector, because with it the runtime randomises
// the order of goroutines.
func buildStorm(t *testing.T) (bin string) {
	t.Helper()
	bin = filepath.Join(t.TempDir(), "storm")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-race=false", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// reproduce runs storms of a seed until two have the same decisions, and returns these.
func reproduce(t *testing.T, bin string, seed uint64) []byte {
	t.Helper()
	var seen [][]byte
	for n := 1; n <= mostStorms; n++ {
		told := runStorm(t, bin, seed)
		for _, other := range seen {
			if bytes.Equal(told, other) {
				t.Logf("seed %d: %d decisions, digest %.8x, alike twice in %d storms", seed, bytes.Count(told, []byte("\n")), sha256.Sum256(told), n)
				return told
			}
			t.Logf("seed %d, storm %d: %s", seed, n, difference(other, told))
		}
		seen = append(seen, told)
	}
	t.Fatalf("seed %d: no two of %d storms alike", seed, mostStorms)
	return nil
}

// runStorm returns what another process prints about a storm. The process has one processor, and
// neither signals nor the garbage collector preempt its goroutines at random.
func runStorm(t *testing.T, bin string, seed uint64) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), seedEnv+"="+strconv.FormatUint(seed, 10),
		"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, out)
	}
	return out
}

// difference returns the first decision in which two storms differ.
func difference(a, b []byte) string {
	as, bs := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	for i := range min(len(as), len(bs)) {
		if !bytes.Equal(as[i], bs[i]) {
			return fmt.Sprintf("decision %d differs:\n%s\n%s", i, as[i], bs[i])
		}
	}
	return fmt.Sprintf("%d decisions, and %d", len(as), len(bs))
}

// tellStorm writes a line for each decision of the interfaces' ladders, and for each entry of the
// journal, which contains the decisions of the devices' ladders.
func tellStorm(t *testing.T, seed string) {
	number, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := rage(t, number, new(tally))
		for _, h := range s.hosts {
			h.ladder.tell(h.name)
		}
		for _, e := range s.told {
			fmt.Println(entryLine(e))
		}
	})
}

// entryLine omits the time zone, which is the machine's, and the failed request: among requests
// posted at the same instant, the seed does not determine which one fails.
func entryLine(e journal.Entry) string {
	e.Time = e.Time.UTC()
	if e.Kind != journal.KindNote {
		e.Text = ""
	}
	return fmt.Sprintf("%+v", e)
}

// tell writes the decisions of the ladder. It omits steps that changed nothing, and reports, which
// are in the journal.
func (r *recorder) tell(name string) {
	was := qprecovery.Idle
	for _, s := range r.steps {
		if len(s.actions) > 0 || s.to != was {
			actions := slices.DeleteFunc(slices.Clone(s.actions), func(a qprecovery.Action) bool {
				_, ended := a.(qprecovery.Ended)
				return ended
			})
			fmt.Println(name, s.at.UnixNano(), eventLine(s.event), s.to, actions)
		}
		was = s.to
	}
}

// eventLine omits the failed request too, because its address differs between processes.
func eventLine(ev qprecovery.Event) string {
	if f, ok := ev.(qprecovery.Fault); ok {
		f.Request = nil
		ev = f
	}
	return fmt.Sprintf("%T%+v", ev, ev)
}
