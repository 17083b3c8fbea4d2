package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// docs/counters.md describes each counter that a daemon on the software HCA shows, and no
// counter that there is not. A name with an asterisk stands for counters that exist only once
// they have counted.
func TestCountersAreDocumented(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	text, err := os.ReadFile("../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = true
		}
	}
	h := newHosts(t, 1)[0]
	h.start("--peer", nstest.IPv4(2)) // for the counters of peers
	h.Run("ip", "link", "set", ifName, "up")
	h.waitCarrier()
	s := h.daemon.status()
	shown := map[string]bool{}
	for _, counters := range []map[string]uint64{s.Devices[0].Counters, s.Interfaces[0].Counters, s.Interfaces[0].Kernel} {
		for name := range counters {
			if shown[name] = true; !documented[name] {
				t.Errorf("docs/counters.md does not describe %s", name)
			}
		}
	}
	for name := range documented {
		if !shown[name] && !strings.HasSuffix(name, "*") {
			t.Errorf("docs/counters.md describes %s, which there is not", name)
		}
	}
	t.Logf("%d counters", len(shown))
}
