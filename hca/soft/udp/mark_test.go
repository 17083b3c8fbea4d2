package udp_test

import (
	"testing"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// The identification is read from the mark of a packet, of a train only that of its first
// datagram. Without a mark, over IPv6 and without Config.MarkID it is unknown.
func TestIdentificationFromTheMark(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	upperHalf := func(mark uint32) (uint16, bool) { return uint16(mark >> 16), mark&0xffff == 0x2000 }
	for _, c := range []struct {
		name   string
		markID func(uint32) (uint16, bool)
		rule   string // of the receiver's host, for packets to the port
		known  bool
	}{
		{"marked", upperHalf, "meta mark set 0x9abc2000", true},
		{"other mark", upperHalf, "meta mark set 0x9abc0001", false},
		{"no mark", upperHalf, "accept", false},
		{"off", nil, "meta mark set 0x9abc2000", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nsA, nsB := nstest.Pair(t, 1500)
			a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{MarkID: c.markID})
			nsB.Run("nft", "add table ip m; add chain ip m c { type filter hook prerouting priority 0; }; add rule ip m c udp dport 4791 "+c.rule)
			sendOne(t, a, trainOf(a, b, false, 1, 20))
			sendOne(t, a, trainOf(a, b, false, 3, 20))
			sendOne(t, a, trainOf(a, b, true, 1, 20))
			var got [5]transport.Packet
			for i := range got {
				got[i] = recvOne(t, b)
				known := c.known && (i == 0 || i == 1)
				if got[i].IDKnown != known || known && got[i].ID != 0x9abc {
					t.Errorf("datagram %d: identification %#x, known %t; want known %t", i, got[i].ID, got[i].IDKnown, known)
				}
			}
		})
	}
}
