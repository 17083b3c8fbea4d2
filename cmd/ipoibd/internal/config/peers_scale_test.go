package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A file with 10,000 peers is accepted, and read in a time that does not delay the start.
func TestTenThousandPeers(t *testing.T) {
	const peers = 10_000
	var text strings.Builder
	text.WriteString("devices:\n  - name: soft\n    device: soft\n    underlay: eth0\n    peers:\n")
	for i := range peers {
		fmt.Fprintf(&text, "      - %v\n", netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	text.WriteString("interfaces:\n  - name: ib0\n    device: soft\n")
	start := time.Now()
	c, err := Parse("peers.yaml", []byte(text.String()))
	took := time.Since(start)
	t.Logf("read in %v", took)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Devices[0].Peers); n != peers {
		t.Errorf("%d peers, want %d", n, peers)
	}
	if limit := 10 * time.Second; took > limit {
		t.Errorf("read in %v, want %v at most", took, limit)
	}
}
