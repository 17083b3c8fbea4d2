package join

import (
	"encoding/binary"
	"testing"
)

// Two IPv6 flows whose addresses have the same hash are different.
func TestFlowsWithEqualHashesDiffer(t *testing.T) {
	b := make([]byte, ipv6Len+udpHeaderLen+1)
	b[0], b[ipv6PayloadLen+1], b[ipv6Next] = 0x60, udpHeaderLen+1, UDP
	b[ipv6Len+udpLength+1], b[ipv6Len+udpSum] = udpHeaderLen+1, 1
	c := append([]byte(nil), b...)
	for i, add := range []uint64{1, ^hashFactor + 1} { // of the destination's halves
		half := c[24+8*i:]
		binary.BigEndian.PutUint64(half, binary.BigEndian.Uint64(half)+add)
	}
	var p, q Packet
	p.Parse(b, true, true, 0)
	q.Parse(c, true, true, 0)
	if p.Kind != Joinable || p.pair != q.pair || p.ports != q.ports {
		t.Fatalf("kind %d, hashes %#x, %#x, ports %#x, %#x; want equal ones", p.Kind, p.pair, q.pair, p.ports, q.ports)
	}
	if p.SameFlow(&q, b, c) {
		t.Error("taken for one flow")
	}
	if !p.SameFlow(&p, b, b) {
		t.Error("a flow differs from itself")
	}
}
