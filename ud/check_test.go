package ud

import (
	"maps"
	"strings"
	"testing"

	"ipoibd/hca"
)

// fataler is a testing.TB or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkAccounts fails unless the sums of doc.go hold.
func checkAccounts(t fataler, cs []hca.Counter) {
	t.Helper()
	m := map[string]uint64{}
	var drops uint64
	for _, c := range cs {
		m[c.Name[3:]] = c.Value
		if name := c.Name[3:]; strings.HasPrefix(name, "drop_") {
			drops += c.Value
		}
		if strings.HasPrefix(c.Name, "tx_wc_") {
			drops += c.Value
		}
	}
	in := m["read"] + m["injected"] + m["received"]
	out := m["sent"] + m["delivered"] + m["slow_path"] + m["probe"] + m["own_multicast"] + drops + m["queued"]
	if strings.HasPrefix(cs[0].Name, "tx_") {
		out += m["outstanding"]
	}
	if in != out {
		t.Fatalf("%d frames in, %d accounted for: %v", in, out, counts(cs))
	}
	if m["posts"] != m["completions"]+m["taken_back"]+m["outstanding"] {
		t.Fatalf("posts do not add up: %v", counts(cs))
	}
}

// checkRing fails unless the ring's records are consistent and the engine holds
// exactly held slots.
func checkRing(t fataler, r *ring, held int) {
	t.Helper()
	seen := map[slotState]int{}
	for _, s := range r.state {
		seen[s]++
	}
	if seen[slotFree] != len(r.free) || seen[slotPosted] != r.posted || seen[slotHeld] != held {
		t.Fatalf("ring: states %v, %d free, %d posted, %d held", seen, len(r.free), r.posted, held)
	}
}

// checkRing is checkRing for an idle Tx, which holds only the slots of
// described sends.
func (b *txBench) checkRing(t fataler) {
	t.Helper()
	checkRing(t, b.ring, len(b.wrs))
}

func (b *rxBench) checkRing(t fataler) {
	t.Helper()
	checkRing(t, b.ring, 0)
}

// checkCounts fails unless exactly these counters are not zero.
func checkCounts(t *testing.T, cs []hca.Counter, want map[string]uint64) {
	t.Helper()
	checkAccounts(t, cs)
	if got := counts(cs); !maps.Equal(got, want) {
		t.Errorf("counters %v, want %v", got, want)
	}
}

func TestReasonsAreNamedAndCounted(t *testing.T) {
	names := map[string]Reason{}
	counted := map[Reason]bool{}
	for _, r := range append(txReasons[:len(txReasons):len(txReasons)], rxReasons...) {
		counted[r] = true
	}
	for r := range numReason {
		if other, ok := names[r.String()]; ok || r.String() == "" {
			t.Errorf("reason %d has the name %q, as has reason %d", r, r, other)
		}
		names[r.String()] = r
		if drop := strings.HasPrefix(r.String(), "drop_"); drop != (r >= Truncated) {
			t.Errorf("%v: counted as a drop: %v", r, drop)
		}
		if !counted[r] {
			t.Errorf("%v is counted in no direction", r)
		}
	}
	if got := numReason.String(); got != "unknown" {
		t.Errorf("name of a reason out of range: %q", got)
	}
}
