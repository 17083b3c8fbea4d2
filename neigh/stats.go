package neigh

import "ipoibd/hca"

// Reason is the reason for which a frame was dropped.
type Reason uint8

// The reasons. Here a frame is a frame from the host or a message from the
// fabric.
const (
	DropRunt         Reason = iota // too short for its headers, or no valid IP header
	DropOversize                   // longer than the MTU
	DropEtherType                  // not carried by IPoIB
	DropBadSource                  // source MAC is zero or multicast, or source GID or QPN is impossible
	DropStationsFull               // from a MAC behind ib0, of which there are too many
	DropLoopedMAC                  // from the host, with the MAC of a peer, or one that others give to us: a loop
	DropToSelf                     // from the host to its own MAC
	DropOwnAnswer                  // a report of groups that answers the table's own query
	DropDetached                   // no QP
	DropBadARP                     // malformed, or the host's with a MAC that is not its own
	DropBadND                      // malformed
	DropUnmapped                   // ND with an unknown link-layer address
	DropTooLong                    // ND that translation made longer than the MTU
	DropForged                     // hardware address differs from the sender's GID and QPN
	DropUnknownLID                 // InfiniBand: names no sender, and no peer is known at its LID and QPN
	DropForeignLID                 // InfiniBand: names a sender whose path leads to another LID
	DropNoPath                     // InfiniBand: names a sender to whose port there is no path
	DropClaimsFull                 // InfiniBand: too many messages whose senders are not proven yet
	DropOwn                        // our own message, looped back
	DropUnresolvable               // unknown destination MAC, and no address to resolve
	DropUnresolved                 // no answer
	DropResolveLimit               // too many addresses being resolved
	DropKeptFrames                 // too many frames kept for this destination
	DropKeptBytes                  // too many bytes kept in total
	DropAHFailed                   // the handle could not be created
	DropAHLimit                    // first message to a heard peer while too many handles are being created
	DropEvicted                    // kept for a peer that was removed
	DropBadEcho                    // malformed, or sent to a group
	DropEchoStranger               // an echo request from, or to, a peer that is not known
	DropEchoLimit                  // too many echo requests
	NumReason                      // number of reasons
)

var reasonNames = [NumReason]string{
	"runt", "oversize", "ethertype", "bad_source", "stations_full", "looped_mac", "to_self", "own_query_answers", "detached",
	"bad_arp", "bad_nd", "unmapped_link_address", "nd_too_long", "forged_link_address",
	"unknown_lid", "foreign_lid", "no_path", "claims_full", "own_multicast",
	"unresolvable", "unresolved", "resolutions_full", "kept_frames_full", "kept_bytes_full", "ah_failed",
	"ah_limit", "evicted", "bad_echo", "echo_stranger", "echo_limit",
}

// String returns the name used in logs and counters.
func (r Reason) String() string {
	if r >= NumReason {
		return "unknown"
	}
	return reasonNames[r]
}

// Stats count every frame exactly once:
//
//	FromHost + FromFabric + Pings = ToFabric + ToHost + EchoReplies + KeptSent + Kept + the sum of Drops
type Stats struct {
	FromHost    uint64 // frames from the host
	FromFabric  uint64 // messages of the fabric
	Pings       uint64 // echo requests of the operator
	ToFabric    uint64 // frames from the host, echo requests and answers to them, sent at once
	ToHost      uint64 // messages from the fabric delivered
	EchoReplies uint64 // echo replies from the fabric
	KeptSent    uint64 // like ToFabric, but kept first and sent later
	Drops       [NumReason]uint64

	// Messages that the table itself originated; they are not part of the sum above.
	Requests      uint64 // ARP requests and solicitations, for unknown MACs, HostAsks and silent peers
	Announcements uint64 // gratuitous ARP and unsolicited advertisements
	Seeks         uint64 // ARP requests and solicitations to stations, for unknown addresses behind ib0
	Queries       uint64 // IGMP and MLD queries to the stations
	Corrections   uint64 // messages to the host that correct the MAC of a peer

	Silences uint64 // times that the table requested the addresses of a silent peer
	Evicted  uint64 // peers removed to make room for others
	AHFailed uint64 // failed attempts to create a handle

	PathsAsked uint64 // paths requested, on InfiniBand
	PathFailed uint64 // paths that were not found

	AddressesFull uint64 // addresses of stations for which there was no room
	GroupsFull    uint64 // reports of stations with too many groups

	Resolved hca.Durations // of the resolutions that were answered, from the first request

	// Each Stray ends in one of these, or waits for its handle.
	Notices            uint64 // the host was announced to the sender
	StraysPaused       uint64 // the sender received a notice recently
	StraysLimited      uint64 // too many senders, or too many handles being created
	StraysUnanswerable uint64 // forged sender, no QP, no handle, or no address to announce

	Kept        int // frames currently kept
	KeptBytes   int // bytes of the frames currently kept
	Heard       int // heard peers
	Used        int // used peers
	Resolutions int // addresses being resolved
	AHs         int // handles held

	StationsFull bool // there is no room for another MAC or address behind ib0
}

// Counters returns the counters by name. It allocates.
func (s Stats) Counters() []hca.Counter {
	out := []hca.Counter{
		{Name: "from_host", Kind: hca.CountTotal, Value: s.FromHost},
		{Name: "from_fabric", Kind: hca.CountTotal, Value: s.FromFabric},
		{Name: "pings", Kind: hca.CountTotal, Value: s.Pings},
		{Name: "echo_replies", Kind: hca.CountTotal, Value: s.EchoReplies},
		{Name: "to_fabric", Kind: hca.CountTotal, Value: s.ToFabric},
		{Name: "to_host", Kind: hca.CountTotal, Value: s.ToHost},
		{Name: "kept_sent", Kind: hca.CountTotal, Value: s.KeptSent},
		{Name: "kept", Kind: hca.CountGauge, Value: uint64(s.Kept)},
		{Name: "requests", Kind: hca.CountTotal, Value: s.Requests},
		{Name: "announcements", Kind: hca.CountTotal, Value: s.Announcements},
		{Name: "seeks", Kind: hca.CountTotal, Value: s.Seeks},
		{Name: "queries", Kind: hca.CountTotal, Value: s.Queries},
		{Name: "addresses_full", Kind: hca.CountError, Value: s.AddressesFull},
		{Name: "groups_full", Kind: hca.CountError, Value: s.GroupsFull},
		{Name: "corrections", Kind: hca.CountTotal, Value: s.Corrections},
		{Name: "silences", Kind: hca.CountTotal, Value: s.Silences},
		{Name: "stray_notices", Kind: hca.CountTotal, Value: s.Notices},
		{Name: "stray_paused", Kind: hca.CountTotal, Value: s.StraysPaused},
		{Name: "stray_limited", Kind: hca.CountError, Value: s.StraysLimited},
		{Name: "stray_unanswerable", Kind: hca.CountError, Value: s.StraysUnanswerable},
		{Name: "peers_evicted", Kind: hca.CountTotal, Value: s.Evicted},
		{Name: "paths_asked", Kind: hca.CountTotal, Value: s.PathsAsked},
		{Name: "path_errors", Kind: hca.CountError, Value: s.PathFailed},
		{Name: "ah_errors", Kind: hca.CountError, Value: s.AHFailed},
	}
	for r, n := range s.Drops {
		c := hca.Counter{Name: "drop_" + Reason(r).String(), Kind: hca.CountDrop, Value: n}
		if Reason(r) == DropOwn || Reason(r) == DropOwnAnswer { // not a loss
			c.Name, c.Kind = Reason(r).String(), hca.CountTotal
		}
		out = append(out, c)
	}
	return out
}
