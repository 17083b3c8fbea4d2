package soft_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

var (
	addrA4 = netip.MustParseAddr("10.0.0.1")
	addrB4 = netip.MustParseAddr("10.0.0.2")
	addrA6 = netip.MustParseAddr("fd00::1")
	addrB6 = netip.MustParseAddr("fd00::2")
	group4 = netip.MustParseAddr("239.1.2.3")
	group6 = netip.MustParseAddr("ff12:401b:ffff::ffff:ffff")
)

// underlay is a kind of network that the suite runs over.
type underlay struct {
	name       string
	a, b       netip.Addr
	group      netip.Addr
	mtu        int
	standard   bool
	replicated bool
	ids        bool // receivers see the IPv4 identifications, so that none may differ from the one that the ICRC is for
	single     bool // no trains
	lanes      int  // 0 means 1
}

func TestConformance(t *testing.T) {
	for _, u := range []underlay{
		{name: "IPv4", a: addrA4, b: addrB4, group: group4, mtu: 1500},
		{name: "IPv4 with identifications", a: addrA4, b: addrB4, group: group4, mtu: 1500, ids: true},
		{name: "IPv4 without trains", a: addrA4, b: addrB4, group: group4, mtu: 1500, ids: true, single: true},
		{name: "IPv6", a: addrA6, b: addrB6, group: group6, mtu: 9000},
		{name: "2 lanes", a: addrA4, b: addrB4, group: group4, mtu: 1500, lanes: 2},
		{name: "4 lanes, IPv6", a: addrA6, b: addrB6, group: group6, mtu: 9000, lanes: 4},
		{name: "standard MTU", a: addrA4, b: addrB4, group: group4, mtu: 1500, standard: true},
	} {
		t.Run(u.name, func(t *testing.T) { hcatest.Run(t, u.harness()) })
	}
}

// With replicated multicast the GRH has the destination's unicast address, and every QP
// that is attached to any group receives the message. The rest of the contract holds.
func TestConformanceReplicated(t *testing.T) {
	u := underlay{a: addrA4, b: addrB4, group: group4, mtu: 1500, replicated: true}
	hcatest.Run(t, u.harness())
}

func (u underlay) harness() hcatest.Harness {
	return hcatest.Harness{
		Open: u.open,
		In:   synctest.Test,
		Features: hcatest.Features{
			MGID: hca.GIDFromAddr(u.group), SendErrorIsSQE: true, ShortRecvIsErr: true, LongSendIsErr: true,
			OverrunVoidsCQ: true, OwnGroupLoops: true, ChecksProtection: true, ChecksWholeRecv: true,
			LateRecvFlushes: true, SQDResumes: true, OtherPKey: true,
		},
	}
}

func (u underlay) open(t *testing.T) (a, b hcatest.Host) {
	var opts []memfabric.Option
	if u.ids {
		opts = append(opts, memfabric.WithIDs())
	}
	f := memfabric.New(1, opts...)
	return u.host(t, f, "a", u.a), u.host(t, f, "b", u.b)
}

func (u underlay) host(t *testing.T, f *memfabric.Fabric, name string, addr netip.Addr) hcatest.Host {
	ports := f.AttachLanes(max(1, u.lanes), name, u.mtu, addr)
	port := ports[0]
	if u.single {
		port.SetLimits(transport.Limits{MaxSegs: 1})
	}
	var more []transport.Transport
	for _, p := range ports[1:] {
		more = append(more, p)
	}
	cfg := soft.Config{
		Name: name, Transport: port, More: more, StandardMTU: u.standard,
		PKeys: []hca.PKey{hca.PKeyDefault, 0x8001}, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	if u.replicated {
		peers := []netip.Addr{u.a, u.b}
		cfg.Peers, cfg.KnownPeersOnly = func() []netip.Addr { return peers }, true
	}
	dev, err := soft.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return hcatest.Host{
		Dev: dev, Port: 1,
		SetLink:   port.SetUp,
		AddGID:    func() { port.AddAddr(netip.MustParseAddr("10.9.9.9")) },
		RemoveDev: port.Remove,
		Stall:     func(on bool) { port.SetWritable(!on) },
	}
}
