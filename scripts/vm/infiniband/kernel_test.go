package infiniband

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// requireKernelInterface sets an interface of the kernel's IPoIB up on the daemon's port, and down again. That ends the
// port's memberships, which the daemon restores.
func (p *pair) requireKernelInterface(t *testing.T, _ network) {
	g := p.guests[ours]
	g.Run("sh", "-ec", "insmod /run/infiniband/*ib_ipoib*; ip link set ib1 up")
	up := func() int {
		var s struct {
			Devices []struct {
				Ports []struct {
					KernelIPoIB   int `json:"kernel_ipoib"`
					KernelIPoIBUp int `json:"kernel_ipoib_up"`
				} `json:"ports"`
			} `json:"devices"`
		}
		out := g.Run("ipoibd", "status", "--json")
		if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Devices) != 1 || len(s.Devices[0].Ports) != 1 {
			t.Fatalf("%v\n%s", err, out)
		}
		if port := s.Devices[0].Ports[0]; port.KernelIPoIB == 1 {
			return port.KernelIPoIBUp
		}
		return -1
	}
	waitFor(t, g, "/sys/class/net/ib1/carrier", "1")
	eventually(t, carrierLimit, "the daemon sees the interface", func() bool { return up() == 1 })
	requests := p.Counters(ours).Requests
	g.Run("ip", "link", "set", "ib1", "down")
	took := eventually(t, carrierLimit, "the daemon sees that it is down", func() bool { return up() == 0 })
	took += eventually(t, carrierLimit, "the port is a member again", func() bool {
		return slices.Contains(p.Members(p.Group(broadcastGroup).MLID), ours)
	})
	t.Logf("%v, %d requests later", took.Round(time.Millisecond), p.Counters(ours).Requests-requests)
	p.guests[theirs].Run("ip", "-6", "neigh", "flush", "dev", "ib0")
	p.guests[theirs].Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "10", network(0).ip6(12))
}
