package neigh

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/ud/ipoib"
)

// TestSeekOfARemovedPeer: if the peer that sent to an unknown station is removed, no one is asked in its name, and the
// packet still arrives.
func TestSeekOfARemovedPeer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), ip("10.0.0.9"))...), peerB.key(), false})
	b.step(attachedAt(peerB)) // ours now
	before := b.table.Stats()
	out := b.advance(time.Second)
	if got := ipoib.MAC(only[SendHost](t, out).Frame); got != ownMAC || b.table.Stats().Seeks != before.Seeks {
		t.Errorf("the packet goes to %v; %d requests", got, b.table.Stats().Seeks-before.Seeks)
	}
}

// TestSeekForAPacketFromAGroup: in the name of a source that no node can have, no one is asked.
func TestSeekForAPacketFromAGroup(t *testing.T) {
	b := attachedBench(t, Config{})
	for _, a := range b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), ipPacket(ip("ff02::9"), ip("fe80::9:1"))...), peerB.key(), false}) {
		if s, ok := a.(SendHost); ok {
			t.Errorf("a frame for the host: % x", s.Frame)
		}
	}
}

// TestOtherStationsEndNoSeek: what is kept for an address waits for its station, whatever others claim.
func TestOtherStationsEndNoSeek(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), ip("10.0.0.9"))...), peerB.key(), false})
	b.step(claimOf(firstMAC, "10.0.0.8"))
	if n := b.table.Stats().Kept; n != 1 {
		t.Fatalf("%d packets are kept, want 1", n)
	}
	if got := ipoib.MAC(only[SendHost](t, b.step(claimOf(secondMAC, "10.0.0.9"))).Frame); got != secondMAC {
		t.Errorf("the packet goes to %v, want %v", got, secondMAC)
	}
}

// TestSeeksEndInOrder: if several addresses are found at once, what was kept for them is delivered in their order, so that
// the same events cause the same actions.
func TestSeeksEndInOrder(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	addrs := []netip.Addr{ip(ipA), ip(llA)}
	for i := range byte(16) {
		to := netip.AddrFrom4([4]byte{10, 0, 0, 0x80 | i*7%16})
		b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), to)...), peerB.key(), false})
		addrs = append(addrs, to)
	}
	var got []netip.Addr
	for _, a := range b.step(given(addrs...)) {
		if s, ok := a.(SendHost); ok {
			to, _ := ipoib.DestIP(ipoib.EtherTypeIPv4, s.Frame[14:])
			got = append(got, to)
		}
	}
	if len(got) != 16 || !slices.IsSortedFunc(got, netip.Addr.Compare) {
		t.Errorf("delivered to %v", got)
	}
}
