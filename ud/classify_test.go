package ud

import (
	"net/netip"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

func testRules() txRules {
	return txRules{testMTU, false, nil, ipoib.ScopeLinkLocal, testPKey, newPeers(1)}
}

// offload returns a frame to B whose virtio header is h.
func offload(h vnet.Header) []byte {
	f := toB(100)
	h.Put(f)
	return f
}

func TestClassify(t *testing.T) {
	v4, v6, arp, rarp := ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6, ipoib.EtherTypeARP, ipoib.EtherTypeRARP
	mdns4, mdns6 := ipoib.MAC{1, 0, 0x5e, 0, 0, 0xfb}, ipoib.MAC{0x33, 0x33, 0, 0, 0, 0xfb}
	for _, c := range []struct {
		name  string
		frame []byte
		to    hca.UDDest
		want  Reason
	}{
		{"unicast IPv4", toB(100), destB, Sent},
		{"unicast IPv6", frame(macB, macA, v6, udp6("fe80::2")), destB, Sent},
		{"no payload", frame(macB, macA, v4, nil), destB, Sent},
		{"longest payload", toB(testMTU), destB, Sent},
		{"verified checksum", offload(vnet.Header{Flags: vnet.DataValid}), destB, Sent},

		{"subnet broadcast", frame(ipoib.Broadcast, macA, v4, ipv4("10.0.0.255", 60)), destAll, Sent},
		{"limited broadcast", frame(ipoib.Broadcast, macA, v4, ipv4("255.255.255.255", 60)), destAll, Sent},
		{"group address in a broadcast frame", frame(ipoib.Broadcast, macA, v4, ipv4("239.1.2.3", 60)), destAll, Sent},
		{"IPv4 group", frame(mdns4, macA, v4, ipv4("239.1.2.3", 60)), destGrp, Sent},
		{"IPv6 group", frame(mdns6, macA, v6, udp6("ff02::fb")), destGrp, Sent},
		{"unicast IP in a group frame", frame(mdns4, macA, v4, ipv4("10.0.0.2", 60)), destAll, Sent},
		{"truncated IP header in a group frame", frame(mdns4, macA, v4, ipv4("10.0.0.2", 60)[:19]), destAll, Sent},
		{"group not in the snapshot", frame(mdns4, macA, v4, ipv4("239.9.9.9", 60)), hca.UDDest{}, SlowPathed},

		{"unknown destination", frame(macX, macA, v4, ipv4("10.0.0.3", 60)), hca.UDDest{}, SlowPathed},
		{"unknown source", frame(macB, macX, v4, ipv4("10.0.0.2", 60)), hca.UDDest{}, SlowPathed},
		{"ARP", frame(macB, macA, arp, make([]byte, 28)), hca.UDDest{}, SlowPathed},
		{"empty ARP body", frame(macB, macA, arp, nil), hca.UDDest{}, SlowPathed},
		{"RARP", frame(ipoib.Broadcast, macA, rarp, make([]byte, 28)), hca.UDDest{}, SlowPathed},
		{"ND", frame(mdns6, macA, v6, ns6("ff02::1:ff00:2")), hca.UDDest{}, SlowPathed},
		{"other ICMPv6", frame(macB, macA, v6, ipv6("fe80::2", 58, 128, 255, 60)), destB, Sent},
		{"MLD", frame(mdns6, macA, v6, ipv6("ff02::fb", 0, 58, 1, 76)), destGrp, Sent},

		{"nothing", nil, hca.UDDest{}, Runt},
		{"virtio header only", make([]byte, 10), hca.UDDest{}, Runt},
		{"one byte short", toB(100)[:23], hca.UDDest{}, Runt},
		{"checksum wanted", offload(vnet.Header{Flags: vnet.NeedsCsum}), hca.UDDest{}, Offload},
		{"unknown flag", offload(vnet.Header{Flags: 0x80}), hca.UDDest{}, Offload},
		{"TSO", offload(vnet.Header{GSOType: vnet.GSOTCPv4}), hca.UDDest{}, Offload},
		{"VLAN", frame(macB, macA, 0x8100, ipv4("10.0.0.2", 60)), hca.UDDest{}, EtherType},
		{"802.3 length", frame(macB, macA, 60, make([]byte, 60)), hca.UDDest{}, EtherType},
		{"one byte too long", toB(testMTU + 1), hca.UDDest{}, TooLong},
		{"ARP too long", frame(macB, macA, arp, make([]byte, testMTU+1)), hca.UDDest{}, TooLong},
	} {
		rules := testRules()
		by, got := rules.classify(c.frame)
		if counted := by.bytes != nil; counted != (c.to == destB) {
			t.Errorf("%s: bytes counted: %t", c.name, counted)
		}
		if by.bytes = nil; got != c.want || by != (route{to: c.to}) {
			t.Errorf("%s: %v to %+v, want %v to %v", c.name, got, by, c.want, c.to.AH)
		}
	}
}

// The frame first has every fault. The faults are then corrected one by one, which shows
// the order of the checks.
func TestClassifyOrder(t *testing.T) {
	f := frame(macX, macX, 0x1234, make([]byte, testMTU+1))
	vnet.Header{Flags: vnet.NeedsCsum}.Put(f)
	rules := testRules()
	peers := rules.peers
	rules.peers = nil
	for _, c := range []struct {
		want Reason
		cure func()
	}{
		{Offload, func() { vnet.Header{}.Put(f) }},
		{EtherType, func() { copy(f[22:], []byte{0x08, 0x00}) }},
		{TooLong, func() { f = f[:txPayload+testMTU] }},
		{NoPeers, func() { rules.peers = peers }},
		{SlowPathed, func() { copy(f[16:], macA[:]) }}, // source
		{SlowPathed, func() { copy(f[10:], macB[:]) }}, // destination
		{Sent, func() {}},
	} {
		if _, got := rules.classify(f); got != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
		c.cure()
	}
	if _, got := rules.classify(f[:23]); got != Runt {
		t.Errorf("short frame: %v, want %v", got, Runt)
	}
}

// The MGID has the P_Key with its full-membership bit, and all 28 bits of the
// IPv4 group, of which the Ethernet address has only 23.
func TestClassifyGroupHasAllBits(t *testing.T) {
	rules := testRules()
	rules.pkey = testPKey &^ hca.PKeyMembership
	mac := ipoib.GroupMAC(netip.MustParseAddr("239.1.2.3"))
	for ip, want := range map[string]Reason{"239.1.2.3": Sent, "239.129.2.3": SlowPathed, "224.1.2.3": SlowPathed} {
		if _, got := rules.classify(frame(mac, macA, ipoib.EtherTypeIPv4, ipv4(ip, 60))); got != want {
			t.Errorf("%s: %v, want %v", ip, got, want)
		}
	}
}
