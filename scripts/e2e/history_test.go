package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Events outlive a daemon that is killed: an operator asks for them after the crash.
func TestEventsOutliveACrash(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.join()
	events := func() string {
		out, err := h.ipoibd("events", "--control", h.daemon.control).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if out, err := h.ipoibd("reset", "qp", "--control", h.daemon.control).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, 20*time.Second, "the reset is over", func() bool { return strings.Contains(events(), "recovered") })
	before := events()
	file := strings.TrimSuffix(h.daemon.control, ".sock") + ".events.jsonl"
	eventually(t, repairLimit, "the daemon has written that", func() bool { // it shows events before it writes them
		kept, err := os.ReadFile(file)
		return err == nil && bytes.Contains(kept, []byte(`"recovered"`))
	})
	h.daemon.kill()
	h.start()
	h.waitCarrier()
	if after := events(); !strings.HasPrefix(after, before) {
		t.Errorf("before the crash:\n%s\nafter it:\n%s", before, after)
	}
}
