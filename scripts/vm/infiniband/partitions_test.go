package infiniband

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// partitions are three, each with its own SL: all ports are full members of the first two, and limited members of the
// last.
const partitions = "Default=0x7fff, ipoib, rate=7, mtu=4, sl=3, defmember=full : ALL=full, ALL_SWITCHES=full, SELF=full;\n" +
	"Full=0x0001, ipoib, rate=7, mtu=4, sl=2, defmember=full : ALL=full;\n" +
	"Limited=0x0002, ipoib, rate=7, mtu=4, sl=1, defmember=limited : ALL=limited;\n"

// qosAndPathBits makes OpenSM use the SLs of partitions, and gives each port two LIDs.
const qosAndPathBits = "qos TRUE\nlmc 1\n"

// lanes are the P_Keys and SLs that a host's packets may have.
var lanes = []sm.Lane{{PKey: 0xffff, SL: 3}, {PKey: 0x8001, SL: 2}, {PKey: 0x0002, SL: 1}}

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
`

// The daemon's interfaces in several partitions and the kernel's child interfaces reach each other, by the SL of each
// partition and from either LID of a port. Two limited members do not.
func TestPartitionsAndPaths(t *testing.T) {
	guest.Require(t)
	guest.KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		p := bootPair(t, series, sm.Spec{Partitions: partitions, Options: qosAndPathBits})
		const file = "/run/ipoibd.yaml"
		p.guests[ours].Put(file, 0o644, []byte(partitionedDaemon))
		for i := range p.guests {
			p.SetPathBits(i, 1)
		}
		p.startDaemon(t, "--config", file)
		devs := [3][2]string{{"ib0", "ib0"}, {"full", "ib0.8001"}, {"limited", "ib0.8002"}}
		for _, pkey := range []string{"0x8001", "0x8002"} {
			p.guests[theirs].Run("sh", "-ec", "echo "+pkey+" > /sys/class/net/ib0/create_child")
		}
		for n, names := range devs {
			for host, dev := range names {
				p.up(t, host, dev, network(n))
			}
		}
		t.Run("members of the default partition", func(t *testing.T) { p.requireReached(t, 0) })
		t.Run("full members of another partition", func(t *testing.T) { p.requireReached(t, 1) })
		t.Run("limited members", func(t *testing.T) { p.requireSeparate(t, 2) })
		t.Run("the SL of the partition, and both LIDs", p.requireLanes)
		for _, g := range p.guests {
			requireQuietKernel(t, g)
		}
	})
}

// requireSeparate requires that the hosts do not reach each other in a network, although the switch forwards their
// packets.
func (p *pair) requireSeparate(t *testing.T, n network) {
	limited := lanes[n]
	for i, g := range p.guests {
		before := p.Counters(i).Lanes[limited]
		for _, to := range []string{n.ip4(1 - i), n.ip6(1 - i)} {
			if g.Try("ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "1", to) {
				t.Errorf("host %d reaches %s of a limited member", i, to)
			}
		}
		if after := p.Counters(i).Lanes[limited]; after == before {
			t.Errorf("host %d has sent no packet with %+v", i, limited)
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
		for _, lane := range lanes {
			if c.Lanes[lane] == 0 {
				t.Errorf("host %d has sent no packet with %+v: %v", i, lane, c.Lanes)
			}
		}
		if len(c.Lanes) != len(lanes) {
			t.Errorf("host %d: packets by P_Key and SL %v, want only %v", i, c.Lanes, lanes)
		}
		if c.PathBits == 0 {
			t.Errorf("host %d has received no packet with path bits", i)
		}
	}
	for dev, pkey := range map[string]hca.PKey{"ib0": 0xffff, "full": 0x8001} {
		status := p.status(t, dev)
		if len(status.Peers) != 1 || status.Peers[0].GID != p.GID(theirs).String() {
			t.Errorf("peers of partition %v: %+v, want only the kernel", pkey, status.Peers)
		}
		for _, reason := range []string{"unknown_lid", "foreign_lid", "no_path", "claims_full"} {
			if dropped := status.Counters["neigh_drop_"+reason]; dropped != 0 {
				t.Errorf("%s: %d packets dropped as %s", dev, dropped, reason)
			}
		}
	}
}
