package ud

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// The bytes of the IP packets to and from a peer are counted, including those of large frames, and not those to
// groups, to the slow path, or of frames that are dropped.
func TestPeerBytes(t *testing.T) {
	tx, rx := newTxBench(t, 128), newRxBench(t, rxSlots)
	of := func(s *Snapshot) *fakePeers { return s.Load().(*fakePeers) }
	for _, n := range []int{100, 1000, testMTU, testMTU + 1} {
		tx.src.add(toB(n))
		rx.qp.receive(fromB(n), gidA)
	}
	tx.src.add(frame(ipoib.MAC{1, 0, 0x5e, 1, 2, 3}, macA, ipoib.EtherTypeIPv4, ipv4("239.1.2.3", 500)))
	tx.src.add(frame(macB, macA, ipoib.EtherTypeARP, make([]byte, 28)))
	rx.qp.receive(msg(ipoib.EtherTypeARP, make([]byte, 56)), hca.GID{0xff, 0x12})
	tx.pump(t)
	rx.pump(t)
	const want = 100 + 1000 + testMTU
	if got := of(tx.snap).sent.Load(); got != want {
		t.Errorf("%d bytes sent, want %d", got, want)
	}
	if got := of(rx.snap).heard.Load(); got != want {
		t.Errorf("%d bytes received, want %d", got, want)
	}
}
