package neigh

import "ipoibd/hca"

// Reason names why a frame was dropped.
type Reason uint8

// The reasons. A frame of the host or a message of the fabric is meant by
// "frame".
const (
	DropRunt         Reason = iota // too short for its header
	DropOversize                   // longer than the MTU
	DropEtherType                  // nothing that IPoIB carries
	DropBadSource                  // source MAC zero or multicast, or a source GID or QPN that nobody can have
	DropForeignMAC                 // a second MAC behind ib0
	DropLoopedMAC                  // from the host, with the MAC of a peer: a loop behind ib0
	DropToSelf                     // from the host to its own MAC
	DropDetached                   // no QP
	DropBadARP                     // malformed, or the host's with a MAC that is not its own
	DropBadND                      // malformed
	DropUnmapped                   // ND with a link-layer address that belongs to nobody known
	DropTooLong                    // ND that translation made longer than the MTU
	DropForged                     // hardware address differs from the sender's GID and QPN
	DropOwn                        // our own message come back
	DropUnresolvable               // unknown destination MAC, and no address to ask for or from
	DropUnresolved                 // nobody answered
	DropResolveLimit               // too many addresses being asked for
	DropKeptFrames                 // too many frames kept for this destination
	DropKeptBytes                  // too many bytes kept in all
	DropAHFailed                   // the handle could not be made
	DropAHLimit                    // answer to a stranger while too many handles are under way
	DropEvicted                    // kept for a peer that was collected
	NumReason                      // bounds the enumeration
)

var reasonNames = [NumReason]string{
	"runt", "oversize", "ethertype", "bad_source", "foreign_mac", "looped_mac", "to_self", "detached",
	"bad_arp", "bad_nd", "unmapped_link_address", "nd_too_long", "forged_link_address", "own_multicast",
	"unresolvable", "unresolved", "resolutions_full", "kept_frames_full", "kept_bytes_full", "ah_failed",
	"ah_limit", "evicted",
}

// String returns the name of the reason in logs and counters.
func (r Reason) String() string {
	if r >= NumReason {
		return "unknown"
	}
	return reasonNames[r]
}

// Stats count every frame exactly once:
//
//	FromHost + FromFabric = ToFabric + ToHost + KeptSent + Kept + the sum of Drops
type Stats struct {
	FromHost   uint64 // frames of the host
	FromFabric uint64 // messages of the fabric
	ToFabric   uint64 // frames of the host sent at once
	ToHost     uint64 // messages of the fabric delivered
	KeptSent   uint64 // frames of the host kept first, sent later
	Drops      [NumReason]uint64

	// Messages that the table sent of its own accord; the sum above does not contain
	// them.
	Requests      uint64 // ARP requests and solicitations, for unknown MACs, HostAsks and silent peers
	Announcements uint64 // gratuitous ARP and unsolicited advertisements
	Corrections   uint64 // messages to the host that correct the MAC of a peer

	Silences uint64 // how often the table asked for a used peer that was silent
	Evicted  uint64 // peers that made room for others
	AHFailed uint64 // handles that failed, each try counted

	// Each Stray ends in one of these, or waits for its handle.
	Notices            uint64 // the host was announced to the sender
	StraysPaused       uint64 // the sender had a notice a short while ago
	StraysLimited      uint64 // too many senders, or too many handles under way
	StraysUnanswerable uint64 // forged sender, no QP, no handle, or no address to announce

	Kept        int // frames kept now
	KeptBytes   int // and their bytes
	Heard       int // peers that the host never sent data to
	Used        int // the other peers
	Resolutions int // addresses being asked for
	AHs         int // handles held
}

// Counters returns what has been counted, by name. It allocates.
func (s Stats) Counters() []hca.Counter {
	out := []hca.Counter{
		{Name: "from_host", Value: s.FromHost},
		{Name: "from_fabric", Value: s.FromFabric},
		{Name: "to_fabric", Value: s.ToFabric},
		{Name: "to_host", Value: s.ToHost},
		{Name: "kept_sent", Value: s.KeptSent},
		{Name: "kept", Value: uint64(s.Kept)},
		{Name: "requests", Value: s.Requests},
		{Name: "announcements", Value: s.Announcements},
		{Name: "corrections", Value: s.Corrections},
		{Name: "silences", Value: s.Silences},
		{Name: "stray_notices", Value: s.Notices},
		{Name: "stray_paused", Value: s.StraysPaused},
		{Name: "stray_limited", Value: s.StraysLimited},
		{Name: "stray_unanswerable", Value: s.StraysUnanswerable},
		{Name: "peers_evicted", Value: s.Evicted},
		{Name: "ah_errors", Value: s.AHFailed},
	}
	for r, n := range s.Drops {
		out = append(out, hca.Counter{Name: "drop_" + Reason(r).String(), Value: n})
	}
	return out
}
