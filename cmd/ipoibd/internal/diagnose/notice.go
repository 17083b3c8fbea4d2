package diagnose

import (
	"net/netip"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

// condition is something that a daemon notices about an F. Its texts are templates; see [words.fill].
type condition[F any] struct {
	kind  string                 // of the notice
	holds func(*F) (bool, words) // the words are for the text, and attributes of the log message
	text  string
	// log is a constant, because words may be forged, and the log limits each message, not its attributes.
	// Empty: the condition is not logged here.
	log   string
	every time.Duration // the least time between two log messages
}

// SoftHCA is what a look at an open software HCA shows. The zero value of a field means that all is well, or
// that it is not known.
type SoftHCA struct {
	Sent, Heard  uint64     // datagrams
	Refused      uint64     // datagrams that a firewall of this host has rejected
	NATs         uint64     // signs of a NAT
	From, ICRCOf netip.Addr // of the last one: the source address, and the one that matches the ICRC
	SendBuffer   int        // bytes
	Needed       int        // bytes of the send buffer
	NoTrains     error      // why the kernel or the NIC does not segment UDP
	OneSocket    error      // why the lanes do not have a socket each
	Duplicate    string     // describes another host with an address of the underlay

	symptoms
}

var deviceConditions = []condition[SoftHCA]{
	{
		kind: "nat", every: ComplainEvery,
		holds: func(h *SoftHCA) (bool, words) {
			return h.nat && h.From.IsValid(), words{"from", h.From, "icrc_of", h.ICRCOf}
		},
		text: "datagrams from {from} are dropped: their ICRC matches source address {icrc_of}, so a NAT has " +
			"translated it, or they are forged; RoCEv2 does not work through NAT",
		log: "dropping datagrams whose ICRC matches another source address: a NAT has translated it, or they are " +
			"forged; RoCEv2 does not work through NAT",
	},
	{
		kind: "send_buffer",
		holds: func(h *SoftHCA) (bool, words) {
			return h.SendBuffer < h.Needed, words{"bytes", h.SendBuffer, "needed", h.Needed}
		},
		text: "the send buffer has only {bytes} bytes: if frames to peers that do not answer fill it, frames to all " +
			"other peers are lost; raise the sysctl net.core.wmem_max to {needed}, and restart the daemon",
		log: "the send buffer is small: if frames to peers that do not answer fill it, frames to all other peers are " +
			"lost; raise the sysctl net.core.wmem_max, or grant CAP_NET_ADMIN in the initial user namespace, and " +
			"restart the daemon",
	},
	{
		kind: "no_segmentation", every: ComplainEvery,
		holds: func(h *SoftHCA) (bool, words) { return h.NoTrains != nil, words{"err", h.NoTrains} },
		text: "the kernel or the NIC does not support UDP segmentation (UDP_SEGMENT: {err}), so each datagram is " +
			"sent on its own; no frames are lost, but bulk traffic is slower",
		log: "the kernel or the NIC does not support UDP segmentation (UDP_SEGMENT), so each datagram is sent on its " +
			"own; no frames are lost, but bulk traffic is slower; check the checksum offload of the underlay with " +
			"'ethtool -k' (tx-checksum-ip-generic)",
	},
	{
		kind:  "one_socket",
		holds: func(h *SoftHCA) (bool, words) { return h.OneSocket != nil, words{"err", h.OneSocket} },
		text:  "the software HCA has only one socket for all lanes: {err}",
		log:   "the software HCA has only one socket for all lanes, so they do not receive in parallel",
	},
	{
		kind: "duplicate_address", every: ComplainEvery,
		holds: func(h *SoftHCA) (bool, words) { return h.Duplicate != "", words{"what", h.Duplicate} },
		text:  "{what}; give each host its own",
		log:   "another host has the same underlay address; give each host its own",
	},
	{
		kind:  "silent",
		holds: func(h *SoftHCA) (bool, words) { return h.silent, nil },
		text:  silent, log: silent,
	},
	{
		kind:  "firewall",
		holds: func(h *SoftHCA) (bool, words) { return h.refused, nil },
		text:  refused, log: refused,
	},
}

const (
	silent = "no packet from any peer yet: this is the only host, or the others have a GID of the other IP family, " +
		"or a network without multicast lies between (name the hosts with --peer), or a firewall drops UDP port 4791"
	refused = "a firewall of this host refuses datagrams to UDP port 4791; let them pass"
)

// Link is what a daemon knows about the traffic of an interface.
type Link struct {
	BelowIPv6  bool          // the MTU is below 1280
	Exceeded   hca.PathLimit // a path that carries less than the MTU, by a router's report; zero: none
	Fits       int           // the largest packet that it carries, in bytes
	EventsLost bool          // completion events of the device do not arrive

	StationsFull   bool // there is no room for another MAC or address behind the interface
	GroupsUnserved int  // IP multicast groups that are wanted, but not joined on the InfiniBand subnet
}

var linkConditions = []condition[Link]{
	{
		kind:  "no_ipv6",
		holds: func(l *Link) (bool, words) { return l.BelowIPv6, nil },
		text:  "MTU below 1280: the interface cannot have IPv6 addresses",
	},
	{
		kind: "path_mtu",
		holds: func(l *Link) (bool, words) {
			return l.Exceeded.To.IsValid(), words{"peer", l.Exceeded.To, "path_mtu", l.Exceeded.MTU, "fits", l.Fits}
		},
		text: "the path to {peer} has an MTU of {path_mtu}, according to a router, whose report may be forged, so " +
			"packets of more than {fits} bytes may be lost: if 'ipoibd ping --sweep' to the peer confirms it, set " +
			"the MTU of the interface to {fits}, or raise that of the path",
	},
	{
		kind:  "events_lost",
		holds: func(l *Link) (bool, words) { return l.EventsLost, nil },
		text:  EventsLost,
	},
	{
		kind:  "stations_full",
		holds: func(l *Link) (bool, words) { return l.StationsFull, nil },
		text:  StationsFull,
	},
	{
		kind:  "groups_unserved",
		holds: func(l *Link) (bool, words) { return l.GroupsUnserved > 0, words{"groups", l.GroupsUnserved} },
		text:  "{groups} " + GroupsUnserved,
	},
}

// EventsLost is the text of the notice, which package iface also logs.
const EventsLost = "the completion events of the device are lost, so packets wait up to 0.5 s; check whether its " +
	"interrupts are delivered"

// StationsFull is the text of the notice, which package iface also logs.
const StationsFull = "there are as many MACs or IP addresses behind the interface as it serves; frames of further MACs " +
	"are dropped, and further addresses are not reached; if a guest invents them, stop it; else use another interface"

// GroupsUnserved is the text of the notice, which package iface also logs.
const GroupsUnserved = "multicast groups of the host or of its guests are not joined, because there are more " +
	"than the interface serves, or the subnet administrator or the device refuses them; what members send to them " +
	"does not arrive"

// NoticeUnresolved is the kind of notice whose text package backend makes: the name of a peer cannot be looked up.
const NoticeUnresolved = "unresolved_peer"

// NoticeKinds returns all kinds of notice; docs/status.schema.json has the same.
func NoticeKinds() (kinds []string) {
	for _, c := range deviceConditions {
		kinds = append(kinds, c.kind)
	}
	kinds = append(kinds, NoticeUnresolved)
	for _, c := range linkConditions {
		kinds = append(kinds, c.kind)
	}
	return kinds
}

// Notices returns the notices of an interface, never nil.
func (l *Link) Notices() report.Notices {
	notices := report.Notices{}
	for _, c := range linkConditions {
		if holds, words := c.holds(l); holds {
			notices.Add(c.kind, words.fill(c.text, plain))
		}
	}
	return notices
}
