package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// A message of more datagrams than a kernel puts into one is dropped as a whole: one of 64 KB in
// datagrams of a byte would keep the receiver busy for as long as 65,000 packets.
func TestTrainOfTooManyDatagrams(t *testing.T) {
	for _, tt := range []struct{ bytes, size, datagrams, dropped int }{
		{65507, 1, 0, 65507},
		{maxTrainSegs * 7, 7, maxTrainSegs, 0},
		{maxTrainSegs*7 + 1, 7, 0, maxTrainSegs + 1},
	} {
		r := new(receiver)
		b, info := appendControl[unix.Inet4Pktinfo](r.slots[0].control[:0], unix.SOL_IP, unix.IP_PKTINFO)
		info.Addr = [4]byte{10, 0, 0, 1}
		b, size := appendControl[int32](b, unix.SOL_UDP, unix.UDP_GRO)
		*size = int32(tt.size)
		r.msgs[0].Hdr.SetControllen(len(b))
		setAddr4(&r.slots[0].name, netip.MustParseAddr("10.0.0.2"), 50000)
		r.msgs[0].Len, r.got = uint32(tt.bytes), 1
		got, pkts := 0, make([]transport.Packet, hca.Batch)
		for n := r.give(pkts); n > 0; n = r.give(pkts) {
			got += n
		}
		if lost := int(r.counts.longTrain.Load()); got != tt.datagrams || lost != tt.dropped {
			t.Errorf("%d bytes in datagrams of %d: received %d, dropped %d, want %d and %d", tt.bytes, tt.size, got, lost, tt.datagrams, tt.dropped)
		}
	}
}
