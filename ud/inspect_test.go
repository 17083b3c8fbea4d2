package ud

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// received returns a slot with a message behind a GRH in the IPv6 layout, and
// its completion.
func received(sgid, dgid hca.GID, m []byte) ([]byte, hca.WC) {
	buf := make([]byte, RxStride(4096, false))
	putGRH(buf, sgid, dgid)
	copy(buf[hca.GRHLen:], m)
	return buf, hca.WC{Flags: hca.WCFlagGRH, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(m))}
}

func TestInspectDestination(t *testing.T) {
	v4, v6 := ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6
	group := hca.GID{0xff, 0x12}
	for _, c := range []struct {
		name string
		dgid hca.GID
		msg  []byte
		want string
	}{
		{"unicast", gidA, msg(v4, ipv4("10.0.0.1", 60)), "02:00:00:00:00:0a"},
		{"unicast IPv6", gidA, msg(v6, udp6("fe80::1")), "02:00:00:00:00:0a"},
		{"IPv4 group", group, msg(v4, ipv4("239.129.2.3", 60)), "01:00:5e:01:02:03"},
		{"IPv6 group", group, msg(v6, udp6("ff02::1:3")), "33:33:00:01:00:03"},
		{"limited broadcast", group, msg(v4, ipv4("255.255.255.255", 60)), "ff:ff:ff:ff:ff:ff"},
		{"subnet broadcast", group, msg(v4, ipv4("10.0.0.255", 60)), "ff:ff:ff:ff:ff:ff"},
		{"IPv4 group, replicated", gidA, msg(v4, ipv4("239.129.2.3", 60)), "01:00:5e:01:02:03"},
		{"IPv6 group, replicated", gidA, msg(v6, udp6("ff02::1:3")), "33:33:00:01:00:03"},
		{"limited broadcast, replicated", gidA, msg(v4, ipv4("255.255.255.255", 60)), "ff:ff:ff:ff:ff:ff"},
	} {
		buf, wc := received(gidB, c.dgid, c.msg)
		rules := rxRules{testMTU, portLID{}, newPeers(1)}
		m, reason := rules.inspect(buf, &wc)
		if reason != Delivered || m.dst.String() != c.want || m.src != macB {
			t.Errorf("%s: %v to %v from %v, want %s", c.name, reason, m.dst, m.src, c.want)
		}
	}
}

func TestInspectReasons(t *testing.T) {
	v4, v6, arp := ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6, ipoib.EtherTypeARP
	for _, c := range []struct {
		name   string
		msg    []byte
		change func(buf []byte, wc *hca.WC)
		want   Reason
	}{
		{"longest", msg(v4, ipv4("10.0.0.1", testMTU)), nil, Delivered},
		{"reserved bits set", []byte("\x08\x00\xff\xff" + string(ipv4("10.0.0.1", 20))), nil, Delivered},
		{"our GID, another QPN", fromB(60), func(buf []byte, _ *hca.WC) { putGRH(buf, gidA, gidA) }, Delivered},
		{"ARP", msg(arp, make([]byte, 56)), nil, SlowPathed},
		{"empty ARP body", msg(arp, nil), nil, SlowPathed},
		{"RARP", msg(ipoib.EtherTypeRARP, make([]byte, 56)), nil, SlowPathed},
		{"ND", msg(v6, ns6("ff02::1:ff00:1")), nil, SlowPathed},

		{"longer than the slot", fromB(60), func(buf []byte, wc *hca.WC) { wc.ByteLen = uint32(len(buf) + 1) }, Truncated},
		{"absurdly long", fromB(60), func(_ []byte, wc *hca.WC) { wc.ByteLen = 1<<32 - 1 }, Truncated},
		{"nothing", fromB(60), func(_ []byte, wc *hca.WC) { wc.ByteLen = 0 }, Runt},
		{"no header", fromB(60), func(_ []byte, wc *hca.WC) { wc.ByteLen = 43 }, Runt},
		{"no GRH", fromB(60), func(_ []byte, wc *hca.WC) { wc.Flags = 0 }, NoGRH},
		{"bad GRH", fromB(60), func(buf []byte, _ *hca.WC) { clear(buf[:hca.GRHLen]) }, BadGRH},
		{"other protocol", msg(0x8847, make([]byte, 60)), nil, EtherType},
		{"one byte too long", msg(v4, ipv4("10.0.0.1", testMTU+1)), nil, TooLong},
		{"ARP too long", msg(arp, make([]byte, testMTU+1)), nil, TooLong},
		{"own", fromB(60), func(buf []byte, wc *hca.WC) { putGRH(buf, gidA, gidA); wc.SrcQPN = qpnA }, OwnMulticast},
		{"own ARP", msg(arp, make([]byte, 56)), func(buf []byte, wc *hca.WC) { putGRH(buf, gidA, gidA); wc.SrcQPN = qpnA }, OwnMulticast},
		{"no IP header", msg(v4, nil), nil, Malformed},
		{"short IP header", msg(v4, ipv4("10.0.0.1", 60)[:19]), nil, Malformed},
		{"IPv6 called IPv4", msg(v4, udp6("fe80::1")), nil, Malformed},
		{"IPv4 called IPv6", msg(v6, ipv4("10.0.0.1", 60)), nil, Malformed},
	} {
		buf, wc := received(gidB, gidA, c.msg)
		if c.change != nil {
			c.change(buf, &wc)
		}
		rules := rxRules{testMTU, portLID{}, newPeers(1)}
		if _, got := rules.inspect(buf, &wc); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The message first has every fault. The faults are then corrected one by one, which
// shows the order of the checks.
func TestInspectOrder(t *testing.T) {
	buf, wc := received(gidA, gidA, msg(0x1234, make([]byte, testMTU+1)))
	clear(buf[:hca.GRHLen])
	wc.Flags, wc.SrcQPN = 0, qpnA
	length := wc.ByteLen
	wc.ByteLen = uint32(len(buf)) + 1
	rules := rxRules{testMTU, portLID{}, nil}
	for _, c := range []struct {
		want Reason
		cure func()
	}{
		{Truncated, func() { wc.ByteLen = 43 }},
		{Runt, func() { wc.ByteLen = length }},
		{NoGRH, func() { wc.Flags = hca.WCFlagGRH }},
		{BadGRH, func() { putGRH(buf, gidA, gidA) }},
		{EtherType, func() { copy(buf[hca.GRHLen:], msg(ipoib.EtherTypeIPv6, ns6("ff02::1"))) }},
		{TooLong, func() { wc.ByteLen-- }},
		{NoPeers, func() { rules.peers = newPeers(1) }},
		{OwnMulticast, func() { wc.SrcQPN = qpnB }},
		{SlowPathed, func() { buf[rxPayload+7] = 64 }}, // with this hop limit it is not ND
		{Delivered, func() { buf[rxPayload] = 0 }},
		{Malformed, func() {}},
	} {
		if _, got := rules.inspect(buf, &wc); got != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
		c.cure()
	}
}
