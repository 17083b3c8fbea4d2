package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// otherVersion is what the source of the other version has in place of what is there.
var otherVersion = []struct{ file, is, other string }{
	// A field more, with a default that is not zero.
	{"cmd/ipoibd/internal/config/interface.go", "type Interface struct {\n", "type Interface struct {\n\tNewer int `json:\"newer\"`\n"},
	// Its default, and another default of a field that both have.
	{"cmd/ipoibd/internal/config/interface.go", "return Interface{Name: DefaultName,", "return Interface{Newer: 7, Up: true, Name: DefaultName,"},
	// A field less.
	{"cmd/ipoibd/internal/iface/handover.go", "`json:\"offloads\"`", "`json:\"-\"`"},
	// A part more, with a descriptor.
	{"cmd/ipoibd/internal/fleet/handover.go", "w.Put(\"fleet\", ", "w.PutFDs(\"newer\", nil, 0)\n\tw.Put(\"fleet\", "},
	// A part less.
	{"cmd/ipoibd/internal/backend/handover.go", "w.Put(\"slot\", handedSlot{f.plugged})", "_ = handedSlot{f.plugged}"},
}

// buildOtherVersion builds the other version, and returns its path.
func buildOtherVersion(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	texts, replaced := map[string]string{}, map[string]string{}
	for _, c := range otherVersion {
		path := filepath.Join(root, c.file)
		if texts[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], c.is); n != 1 {
			t.Fatalf("%s contains %q %d times, want once", c.file, c.is, n)
		}
		texts[path] = strings.Replace(texts[path], c.is, c.other, 1)
		replaced[path] = filepath.Join(dir, strings.ReplaceAll(c.file, "/", "_"))
	}
	for path, text := range texts {
		if err := os.WriteFile(replaced[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "ipoibd")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", program, "ipoibd/cmd/ipoibd").CombinedOutput(); err != nil {
		t.Fatalf("build the other version: %v\n%s", err, out)
	}
	return program
}

// Two versions whose states differ take over from each other under load, in both directions: what one does not send has
// the other's defaults, and what one does not know is ignored. TCP, the queue pairs and the counters continue.
func TestHandOverBetweenVersions(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	other := buildOtherVersion(t)
	hosts := newHosts(t, 2)
	for _, h := range hosts {
		h.other = other
	}
	handOverRepeatedly(t, hosts, form(8, 40), [2]string{"1", "2"})
	for i, h := range hosts {
		if text := h.daemon.log.String(); strings.Contains(text, "change=rebuilt") {
			t.Errorf("host %d: the interface was rebuilt after a hand-over\n%s", i, text)
		}
	}
}
