package verbs

import (
	"os"
	"path/filepath"
	"testing"

	"ipoibd/hca"
)

func TestReadCounter(t *testing.T) {
	for _, tt := range []struct {
		file, text string
		want       hca.Counter
		ok         bool
	}{
		{"ports/1/counters/port_rcv_errors", "12\n", hca.Counter{Name: "port1_port_rcv_errors", Value: 12}, true},
		{"ports/2/hw_counters/rcvd_pkts", "18446744073709551615\n", hca.Counter{Name: "port2_rcvd_pkts", Value: 1<<64 - 1}, true},
		{"ports/1/hw_counters/lifespan", "10\n", hca.Counter{}, false},
		{"ports/1/counters/odd", "N/A (no PMA)\n", hca.Counter{}, false},
		{"ports/1/counters/empty", "", hca.Counter{}, false},
	} {
		file := filepath.Join(t.TempDir(), tt.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, ok := readCounter(file); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %+v, %v", tt.file, got, ok)
		}
	}
	if _, ok := readCounter(filepath.Join(t.TempDir(), "ports/1/counters/none")); ok {
		t.Error("a file that is not there was read")
	}
}

func TestPCIAddrOfNothing(t *testing.T) {
	if got := pciAddr("no-such-device"); got != "" {
		t.Errorf("%q", got)
	}
}
