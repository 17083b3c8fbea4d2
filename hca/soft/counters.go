package soft

import (
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// counter names one of the device's own counts.
type counter uint8

const (
	txPackets counter = iota // datagrams handed to the transport
	txBytes                  // of UDP payload
	txLooped                 // messages looped back to this port
	rxPackets                // datagrams received by the transport
	rxBytes
	rxDelivered     // messages placed in a receive, one for each QP of a group
	icrcIDLow       // ICRC right with an unknown identification of 0-63
	icrcIDSolved    // ICRC right with another unknown identification
	natSuspected    // two datagrams of a source agreed on another address
	cqOverrun       // CQs that failed
	eventsLost      // asynchronous events lost because their queue was full
	dropShort       // too short to be a UD SEND
	dropVersion     // unknown transport header version
	dropOpcode      // not a UD SEND only
	dropImmediate   // UD SEND with immediate data
	dropPad         // padding inconsistent with the length
	dropTooLong     // payload above the largest MTU
	dropICRC        // wrong ICRC
	dropOwnSource   // source is an address of this port
	dropUnknownPeer // source not in Peers
	dropNoQP        // no QP with that number
	dropGSI         // for QP1, which this device does not have
	dropNotAttached // group without a QP
	dropGroupQPN    // group packet without the multicast QPN
	dropPeerFamily  // copies for peers of another family than the source GID
	dropNoRoom      // datagrams for which the transport made no room in time
	dropTransport   // the transport failed
	numCounter
)

var counterNames = [numCounter]string{
	"tx_packets", "tx_bytes", "tx_looped", "rx_packets", "rx_bytes", "rx_delivered",
	"icrc_id_low", "icrc_id_solved", "nat_suspected", "cq_overrun", "events_lost",
	"rx_drop_short", "rx_drop_version", "rx_drop_opcode", "rx_drop_immediate", "rx_drop_pad", "rx_drop_too_long", "rx_drop_icrc", "rx_own_source", "rx_drop_unknown_peer", "rx_drop_no_qp", "rx_drop_gsi",
	"rx_drop_not_attached", "rx_drop_group_qpn", "tx_drop_peer_family", "tx_drop_no_room", "tx_drop_transport",
}

// counters are the device's own and the engine's reasons.
type counters struct {
	own    [numCounter]atomic.Uint64
	reason [softqp.NumReason]atomic.Uint64
}

func (c *counters) add(i counter, n int) { c.own[i].Add(uint64(n)) }

func (c *counters) engine(r softqp.Reason) { c.reason[r].Add(1) }

// Counters implements [hca.Device]: the device's own counters, then the transport's,
// prefixed by "wire_".
func (d *Device) Counters() []hca.Counter {
	var out []hca.Counter
	for i := range d.counts.own {
		out = append(out, hca.Counter{Name: counterNames[i], Value: d.counts.own[i].Load()})
	}
	for r := softqp.Passed + 1; r < softqp.NumReason; r++ {
		out = append(out, hca.Counter{Name: r.String(), Value: d.counts.reason[r].Load()})
	}
	for _, c := range d.wire.Counters() {
		out = append(out, hca.Counter{Name: "wire_" + c.Name, Value: c.Value})
	}
	return out
}
