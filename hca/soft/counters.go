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
	rxOtherPKey     // messages to a group, with a P_Key that no attached QP has
	loopBlocked     // looped messages to a group whose only member here, the sender, blocks them
	icrcIDLow       // ICRC right with an unknown identification of 0-63
	icrcIDSolved    // ICRC right with another unknown identification
	natSuspected    // two datagrams of a source agreed on another address
	cqOverrun       // CQs that failed
	pathsRefuted    // times that reports about a path were refuted
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

var counterTable = [numCounter]hca.Counter{
	txPackets:       {Name: "tx_packets", Kind: hca.CountTotal},
	txBytes:         {Name: "tx_bytes", Kind: hca.CountTotal},
	txLooped:        {Name: "tx_looped", Kind: hca.CountTotal},
	rxPackets:       {Name: "rx_packets", Kind: hca.CountTotal},
	rxBytes:         {Name: "rx_bytes", Kind: hca.CountTotal},
	rxDelivered:     {Name: "rx_delivered", Kind: hca.CountTotal},
	rxOtherPKey:     {Name: "rx_other_pkey", Kind: hca.CountTotal},
	loopBlocked:     {Name: "tx_loop_blocked", Kind: hca.CountTotal},
	icrcIDLow:       {Name: "icrc_id_low", Kind: hca.CountTotal},
	icrcIDSolved:    {Name: "icrc_id_solved", Kind: hca.CountTotal},
	natSuspected:    {Name: "nat_suspected", Kind: hca.CountError},
	cqOverrun:       {Name: "cq_overrun", Kind: hca.CountError},
	pathsRefuted:    {Name: "path_reports_refuted", Kind: hca.CountError},
	eventsLost:      {Name: "events_lost", Kind: hca.CountError},
	dropShort:       {Name: "rx_drop_short", Kind: hca.CountDrop},
	dropVersion:     {Name: "rx_drop_version", Kind: hca.CountDrop},
	dropOpcode:      {Name: "rx_drop_opcode", Kind: hca.CountDrop},
	dropImmediate:   {Name: "rx_drop_immediate", Kind: hca.CountDrop},
	dropPad:         {Name: "rx_drop_pad", Kind: hca.CountDrop},
	dropTooLong:     {Name: "rx_drop_too_long", Kind: hca.CountDrop},
	dropICRC:        {Name: "rx_drop_icrc", Kind: hca.CountDrop},
	dropOwnSource:   {Name: "rx_own_source", Kind: hca.CountError},
	dropUnknownPeer: {Name: "rx_drop_unknown_peer", Kind: hca.CountDrop},
	dropNoQP:        {Name: "rx_drop_no_qp", Kind: hca.CountDrop},
	dropGSI:         {Name: "rx_drop_gsi", Kind: hca.CountDrop},
	dropNotAttached: {Name: "rx_drop_not_attached", Kind: hca.CountDrop},
	dropGroupQPN:    {Name: "rx_drop_group_qpn", Kind: hca.CountDrop},
	dropPeerFamily:  {Name: "tx_drop_peer_family", Kind: hca.CountDrop},
	dropNoRoom:      {Name: "tx_drop_no_room", Kind: hca.CountDrop},
	dropTransport:   {Name: "tx_drop_transport", Kind: hca.CountDrop},
}

// counters are the counters of one lane: the device's own, and the engine's reasons.
type counters struct {
	own    [numCounter]atomic.Uint64
	reason [softqp.NumReason]atomic.Uint64
}

func (c *counters) add(i counter, n int) { c.own[i].Add(uint64(n)) }

func (c *counters) engine(r softqp.Reason) { c.reason[r].Add(1) }

// count returns the sum of a counter over all lanes.
func (d *Device) count(i counter) (n uint64) {
	for _, l := range d.lanes {
		n += l.counts.own[i].Load()
	}
	return n
}

func (d *Device) countReason(r softqp.Reason) (n uint64) {
	for _, l := range d.lanes {
		n += l.counts.reason[r].Load()
	}
	return n
}

// Counters implements [hca.Device]: the device's own counters, then the transports', prefixed by
// "wire_". Both are sums over all lanes; a gauge is the largest value.
func (d *Device) Counters() []hca.Counter {
	var out []hca.Counter
	for i, c := range counterTable {
		c.Value = d.count(counter(i))
		out = append(out, c)
	}
	for r := softqp.Passed + 1; r < softqp.NumReason; r++ {
		out = append(out, hca.Counter{Name: r.String(), Kind: hca.CountDrop, Value: d.countReason(r)})
	}
	own := len(out)
	for _, c := range d.lanes[0].wire.Counters() {
		c.Name = "wire_" + c.Name
		out = append(out, c)
	}
	for _, l := range d.lanes[1:] {
		for i, c := range l.wire.Counters() { // the same ones in the same order
			if sum := &out[own+i].Value; c.Kind == hca.CountGauge {
				*sum = max(*sum, c.Value)
			} else {
				*sum += c.Value
			}
		}
	}
	return out
}
