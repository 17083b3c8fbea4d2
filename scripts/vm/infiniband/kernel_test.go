package infiniband

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// rejoinLimit is ten times the two seconds after which the daemon sees what the kernel wants.
const rejoinLimit = 20 * time.Second

// requireKernelInterface sets an interface of the kernel's IPoIB up on the daemon's port, and down again. That ends the
// port's memberships, which the daemon restores long before it would renew them.
func (p *pair) requireKernelInterface(t *testing.T, n network) {
	g, broadcast := p.guests[ours], p.Group(broadcastGroup).MLID
	g.Run("sh", "-ec", "insmod /run/infiniband/*ib_ipoib*; ip link set ib1 up")
	waitFor(t, g, "/sys/class/net/ib1/carrier", "1")
	time.Sleep(rejoinLimit / 4) // the daemon has seen its groups
	before := p.asked(t)
	g.Run("ip", "link", "set", "ib1", "down")
	asked := eventually(t, rejoinLimit, "the daemon joins again", func() bool { return p.asked(t) > before })
	member := eventually(t, rejoinLimit, "the port is a member", func() bool { return slices.Contains(p.Members(broadcast), ours) })
	t.Logf("the daemon asked after %v, the port was a member after %v more", asked.Round(time.Millisecond), member.Round(time.Millisecond))
	p.guests[theirs].Run("ip", "-6", "neigh", "flush", "dev", "ib0")
	p.guests[theirs].Run("ping", "-n", "-q", "-c", "3", "-i", "0.1", "-W", "10", n.ip6(12))
}

// asked returns how often the daemon has asked the subnet administrator.
func (p *pair) asked(t *testing.T) int {
	t.Helper()
	var s struct {
		Devices []struct {
			Counters map[string]int `json:"counters"`
		} `json:"devices"`
	}
	out := p.guests[ours].Run("ipoibd", "status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Devices) != 1 {
		t.Fatalf("ipoibd status: %v\n%s", err, out)
	}
	return s.Devices[0].Counters["sa_sent"]
}
