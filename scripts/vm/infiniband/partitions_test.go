package infiniband

import (
	"fmt"
	"syscall"
	"testing"

	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// partitions returns partitions.conf. There are four partitions, each with its own SL: all ports are full members of
// the first two, limited members of the third, and in the last only the kernel's port is a full member.
func partitions() string {
	const ipoib = "ipoib, rate=7, mtu=4"
	return "Default=0x7fff, " + ipoib + ", sl=3, defmember=full : ALL=full, ALL_SWITCHES=full, SELF=full;\n" +
		"Full=0x0001, " + ipoib + ", sl=2, defmember=full : ALL=full;\n" +
		"Limited=0x0002, " + ipoib + ", sl=1, defmember=limited : ALL=limited;\n" +
		"Server=0x0003, " + ipoib + ", sl=4, defmember=limited : " +
		fmt.Sprintf("%#x=limited, %#x=full;\n", sm.GUID(ours), sm.GUID(theirs))
}

// qosAndPathBits makes OpenSM use the SLs of partitions, and gives each port two LIDs.
const qosAndPathBits = "qos TRUE\nlmc 1\n"

// partition is an interface in a partition on each host, and the P_Keys and SLs that their packets have.
type partition struct {
	devs  [2]string
	lanes [2]sm.Lane
}

// partitioned are the interfaces of both hosts, by their networks.
var partitioned = []partition{
	{[2]string{"ib0", "ib0"}, [2]sm.Lane{{PKey: 0xffff, SL: 3}, {PKey: 0xffff, SL: 3}}},
	{[2]string{"full", "ib0.8001"}, [2]sm.Lane{{PKey: 0x8001, SL: 2}, {PKey: 0x8001, SL: 2}}},
	{[2]string{"limited", "ib0.8002"}, [2]sm.Lane{{PKey: 0x0002, SL: 1}, {PKey: 0x0002, SL: 1}}},
	{[2]string{"client", "ib0.8003"}, [2]sm.Lane{{PKey: 0x0003, SL: 4}, {PKey: 0x8003, SL: 4}}},
}

// The networks of the partitions.
const (
	netDefault network = iota
	netFull
	netLimited
	netServer
)

const partitionedDaemon = `
devices:
  - name: hca
    device: ibwire0
interfaces:
  - name: ib0
  - name: full
    pkey: 0x8001
  - name: limited
    pkey: 0x8002
  - name: client
    pkey: 0x8003
`

// The daemon's interfaces in several partitions and the kernel's child interfaces reach each other, by the SL of each
// partition and from either LID of a port. Two limited members do not.
func TestPartitionsAndPaths(t *testing.T) {
	guest.Require(t)
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		p := bootPair(t, member{series: series}, sm.Spec{Partitions: partitions(), Options: qosAndPathBits})
		const file = "/run/ipoibd.yaml"
		p.guests[ours].Put(file, 0o644, []byte(partitionedDaemon))
		for i := range p.guests {
			p.SetPathBits(i, 1)
		}
		p.startDaemon(t, "--config", file)
		for _, pkey := range []string{"0x8001", "0x8002", "0x8003"} {
			p.guests[theirs].Run("sh", "-ec", "echo "+pkey+" > /sys/class/net/ib0/create_child")
		}
		for n, partition := range partitioned {
			for host, dev := range partition.devs {
				p.up(t, host, dev, network(n))
			}
		}
		t.Run("members of the default partition", func(t *testing.T) { p.requireReached(t, netDefault) })
		t.Run("full members of another partition", func(t *testing.T) { p.requireReached(t, netFull) })
		t.Run("a limited and a full member", func(t *testing.T) { p.requireReached(t, netServer) })
		t.Run("limited members", func(t *testing.T) { p.requireSeparate(t, netLimited) })
		t.Run("the SL of the partition, and both LIDs", p.requireLanes)
		for _, g := range p.guests {
			requireQuietKernel(t, g)
		}
	})
}

// strayFrames is how many frames each limited member sends to its partition's broadcast group. None may reach the other.
// It sends them in bursts for which the queue of a TAP has room.
const strayFrames, burst = 10_000, 500

// requireSeparate requires that the hosts do not reach each other in a network, and no frame of one reaches the other,
// although the switch forwards their packets.
func (p *pair) requireSeparate(t *testing.T, n network) {
	limited := partitioned[n]
	received := func(host int) string {
		if host == ours { // the kernel also counts the daemon's own queries
			n, ok := p.status(t, limited.devs[ours]).Counters["rx_received"]
			if !ok {
				t.Fatal("the status has no counter rx_received")
			}
			return fmt.Sprint(n)
		}
		return read(p.guests[host], "/sys/class/net/"+limited.devs[host]+"/statistics/rx_packets")
	}
	sent := func(host int) int { return p.Counters(host).Lanes[limited.lanes[host]] }
	var rxBefore []string
	var txBefore []int
	for i, g := range p.guests {
		rxBefore = append(rxBefore, received(i))
		for _, to := range []string{n.ip4(1 - i), n.ip6(1 - i)} {
			if g.Try("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "1", to) {
				t.Errorf("host %d reaches %s of a limited member", i, to)
			}
		}
		txBefore = append(txBefore, sent(i))
	}
	for done := burst; done <= strayFrames; done += burst {
		var senders []*guest.Process
		for _, g := range p.guests {
			sender := g.Start("numbered", "send", n.broadcast()+":5300", fmt.Sprint(burst), "100", "0s")
			waitPrints(t, sender, "ready")
			senders = append(senders, sender)
		}
		for _, sender := range senders {
			sender.Signal(syscall.SIGUSR1)
		}
		requireSuccess(t, senders)
		for i := range p.guests {
			eventually(t, carrierLimit, fmt.Sprintf("host %d has sent %d packets with %+v", i, done, limited.lanes[i]), func() bool {
				return sent(i) >= txBefore[i]+done
			})
		}
	}
	for i := range p.guests {
		t.Logf("host %d has sent %d packets with %+v", i, sent(i)-txBefore[i], limited.lanes[i])
		if rx := received(i); rx != rxBefore[i] {
			t.Errorf("host %d has received %s packets in its partition, had %s", i, rx, rxBefore[i])
		}
	}
	if peers := p.status(t, "limited").Peers; len(peers) != 0 {
		t.Errorf("the daemon's peers in the partition of limited members are %+v, want none", peers)
	}
}

// requireLanes requires that each packet of both hosts had the SL of its partition, that packets came from LIDs with
// path bits, and that the daemon has not taken these for others.
func (p *pair) requireLanes(t *testing.T) {
	for i := range p.guests {
		c := p.Counters(i)
		t.Logf("host %d: %+v", i, c)
		for _, partition := range partitioned {
			if lane := partition.lanes[i]; c.Lanes[lane] == 0 {
				t.Errorf("host %d has sent no packet with %+v: %v", i, lane, c.Lanes)
			}
		}
		if len(c.Lanes) != len(partitioned) {
			t.Errorf("host %d: packets by P_Key and SL %v, want only those of %v", i, c.Lanes, partitioned)
		}
		if c.PathBits == 0 {
			t.Errorf("host %d has received no packet with path bits", i)
		}
	}
	for _, n := range []network{netDefault, netFull, netServer} {
		dev := partitioned[n].devs[ours]
		status := p.status(t, dev)
		if len(status.Peers) != 1 || status.Peers[0].GID != p.GID(theirs).String() {
			t.Errorf("peers of %s: %+v, want only the kernel", dev, status.Peers)
		}
		for _, reason := range []string{"unknown_lid", "foreign_lid", "no_path", "claims_full"} {
			if dropped := status.Counters["neigh_drop_"+reason]; dropped != 0 {
				t.Errorf("%s: %d packets dropped as %s", dev, dropped, reason)
			}
		}
	}
}
