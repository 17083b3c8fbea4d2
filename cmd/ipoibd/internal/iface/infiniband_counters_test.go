package iface

import (
	"os"
	"regexp"
	"testing"

	"ipoibd/neigh/sa"
)

// docs/counters.md describes all counters of the client of a subnet administrator, and no others. The software HCA has
// none of them, so the test of the whole daemon does not see them.
func TestCountersOfTheClientAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(sa_[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		described[row[1]] = true
	}
	for _, c := range (sa.Stats{}).Counters() {
		if !described[c.Name] {
			t.Errorf("docs/counters.md does not describe %s", c.Name)
		}
		delete(described, c.Name)
	}
	for name := range described {
		t.Errorf("docs/counters.md describes %s, which does not exist", name)
	}
}
