package memfabric

import (
	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Drop is the reason for which a datagram was dropped; its text is the name of
// the counter.
type Drop string

// Reasons for a drop, counted at the sender.
const (
	DropBadSource   Drop = "tx_drop_bad_source"  // the source address is not the port's
	DropLinkDown    Drop = "tx_drop_link_down"   // the port's own link is down
	DropTooLong     Drop = "tx_drop_too_long"    // longer than the port's MTU, or than UDP
	DropUnreachable Drop = "tx_drop_unreachable" // no port has the address or has joined the group
	DropInvalid     Drop = "tx_drop_invalid"     // families differ, or the data does not fit the datagrams of a train
)

// Reasons for a drop, counted at the receiver.
const (
	DropPartition  Drop = "rx_drop_partition"       // the two ports are partitioned
	DropLoss       Drop = "rx_drop_loss"            // by Conditions.Loss
	DropOverflow   Drop = "rx_drop_rcvbuf_overflow" // the receive queue is full
	DropPeerDown   Drop = "rx_drop_link_down"       // the receiver's link is down
	DropRxTooLong  Drop = "rx_drop_too_long"        // longer than the receiver's MTU
	DropUnreadable Drop = "rx_drop_closed"          // purged by Close or Remove
)

var drops = []Drop{
	DropBadSource, DropLinkDown, DropTooLong, DropUnreachable, DropInvalid,
	DropPartition, DropLoss, DropOverflow, DropPeerDown, DropRxTooLong, DropUnreadable,
}

// counters of one port; guarded by the fabric.
type counters struct {
	txPackets, txBytes uint64
	rxPackets, rxBytes uint64 // given out by Recv
	blocked            uint64 // calls of Send that found the port not writable
	drops              map[Drop]uint64
}

func (c *counters) list() []hca.Counter {
	out := []hca.Counter{
		{Name: "tx_packets", Kind: hca.CountTotal, Value: c.txPackets},
		{Name: "tx_bytes", Kind: hca.CountTotal, Value: c.txBytes},
		{Name: "rx_packets", Kind: hca.CountTotal, Value: c.rxPackets},
		{Name: "rx_bytes", Kind: hca.CountTotal, Value: c.rxBytes},
	}
	for _, d := range drops {
		out = append(out, hca.Counter{Name: string(d), Kind: hca.CountDrop, Value: c.drops[d]})
	}
	return out
}

// drop counts a packet at p and shows it to the capture hook.
func (f *Fabric) drop(p *Port, from, to string, pkt *transport.Packet, why Drop) {
	p.count.drops[why]++
	f.show(from, to, pkt, why)
}
