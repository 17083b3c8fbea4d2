package iface

import (
	"testing"
	"time"
)

// The status shows the bytes of the IP packets to and from each peer.
func TestStatusShowsBytesOfPeers(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b) // the slow path has sent these packets
		bytes := func(h *testHost) (sent, received uint64) {
			time.Sleep(2 * publishRest)
			peers := h.status().Peers
			if len(peers) != 1 {
				t.Fatalf("%d peers, want 1", len(peers))
			}
			return peers[0].TxBytes, peers[0].RxBytes
		}
		sent, received := bytes(a)
		pingPong(t, a, b) // 5 packets of 100 bytes each way
		if s, r := bytes(a); s != sent+500 || r != received+500 {
			t.Errorf("%d bytes sent and %d received since, want 500 each", s-sent, r-received)
		}
		s, r := bytes(b)
		if s2, r2 := bytes(a); s != r2 || r != s2 {
			t.Errorf("one side has sent %d and received %d, the other %d and %d", s2, r2, s, r)
		}
	})
}
