package e2e

import (
	"encoding/json"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// The datagrams of a flow stay in order although the flows of a host are spread over several lanes.
func TestLanesKeepFlowsInOrder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	for _, h := range hosts {
		h.join("--lanes", "4")
	}
	pingAll(hosts...)
	for _, way := range []string{"--parallel=8", "--reverse", "--bidir"} {
		if n := outOfOrder(t, hosts[0], hosts[1], way); n > 0 {
			t.Errorf("%s: %d datagrams arrived out of order", way, n)
		}
	}
	// iperf3 would notice.
	p := newRelayedPair(t, 1500, rates{hold: 0.01}, sameArgs("--lanes", "4"))
	if outOfOrder(t, p.hosts[0], p.hosts[1], "--reverse") == 0 {
		t.Error("no datagram arrived out of order through a relay that delays some")
	}
}

// outOfOrder sends numbered datagrams in eight flows for a second, and returns how many arrive after a later one
// of the same flow.
func outOfOrder(t *testing.T, a, b *host, way string) (n int) {
	t.Helper()
	out := a.iperf3(b, "--client", b.ip4(), "--udp", "--bitrate=20M", "--length=200", "--parallel=8", "--time=1", "--json", way)
	var report struct {
		End struct {
			Streams []struct {
				UDP struct {
					Packets    int `json:"packets"`
					Lost       int `json:"lost_packets"`
					OutOfOrder int `json:"out_of_order"`
				} `json:"udp"`
			} `json:"streams"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	arrived := 0
	for _, s := range report.End.Streams {
		arrived += s.UDP.Packets - s.UDP.Lost
		n += s.UDP.OutOfOrder
	}
	t.Logf("%s: %d datagrams of %d flows arrived, %d out of order", way, arrived, len(report.End.Streams), n)
	if arrived < 1000 {
		t.Errorf("%s: only %d datagrams arrived", way, arrived)
	}
	return n
}
