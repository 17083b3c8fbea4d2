package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
)

// peerRules are about what keeps peers from being reached.
var peerRules = []rule{
	{"duplicate_address", Error, openDevices, duplicateAddress, nil, texts{
		"another host has the underlay address of this host, or forges it", "{notice} | {counted}",
		"give each host an address of its own", "ip address show dev {underlay}",
	}},
	{"firewall_out", Error, devices, noticed("firewall"), nil, texts{
		"the firewall of this host drops what the daemon sends", "{notice}",
		"allow UDP port 4791", "nft list ruleset",
	}},
	{"firewall_in", Error, firewallRules, always, nil, texts{
		"a firewall of this host drops what the peers send", "nft: {rule}",
		"delete the rule, or add one before it that accepts UDP port 4791",
		"nft delete rule {family} {table} {chain} handle {handle}",
	}},
	{"family_mismatch", Error, openDevices, familyMismatch, noDevice, texts{
		"the peers and this host have addresses of different IP families",
		"the GID of {interface} is {gid}, {family}; all peers are {other}, such as {peer}",
		"name the peers by addresses of this host's family, or give the underlay an address of theirs",
		"ip address add ADDRESS/PREFIX dev {underlay}",
	}},
	{"nat", Error, devices, noticed("nat"), nil, texts{
		"a NAT between the hosts translates addresses, which breaks RoCEv2", "{notice}",
		"connect the hosts without it, or through a tunnel (docs/security.md shows one)", "",
	}},
	{"multicast_off", Error, hereUnderlays, multicastOff, noUnderlay, texts{
		"the underlay does not carry multicast, which hosts need to find each other without --peer",
		"{subject} lacks the flag MULTICAST",
		"enable it, or name the other hosts with --peer", "ip link set {subject} multicast on",
	}},
	{"unresolved_peer", Error, devices, noticed(NoticeUnresolved), nil, texts{
		"the name of a peer cannot be resolved", "{notice}",
		"correct --peer or DNS; the daemon resolves the name again by itself", "",
	}},
	{"pkey_mismatch", Error, openDevices, pkeyMismatch, noInterface, texts{
		"other hosts use another P_Key, and none uses the one of this host", "{counted}; this host has {pkeys}",
		"give all hosts of a network the same P_Key", "ipoibd run --pkey P_KEY",
	}},
	{"qkey_mismatch", Error, openDevices, counted(docs.DeviceRxDropQKey), noInterface, texts{
		"other hosts use another Q_Key", "{counted}",
		"use ipoibd, or another implementation with the Q_Key 0x0b1b, on all hosts",
		"ipoibd status -v --control {control}",
	}},
	{"unknown_peer", Error, openDevices, counted(docs.DeviceRxDropUnknownPeer), noInterface, texts{
		"--known-peers-only drops packets from a host that is not among the peers", "{counted}",
		"add it to the peers; a capture on the underlay shows its address", "tcpdump -ni {underlay} udp port 4791",
	}},
	{"one_sided_peer", Error, openDevices, oneSidedPeer, noInterface, texts{
		"another host seems to name this one with --peer, but this one runs without --peer", "{counted}",
		"name that host here as well, or remove --peer there; a capture on the underlay shows its address (just " +
			"after a restart or a recovery, datagrams for the earlier queue pair are counted too: run doctor again)",
		"ipoibd run --peer ADDRESS",
	}},
	{"peer_refuses", Error, openDevices, peerRefuses, noPackets, texts{
		"a peer's host reports that no daemon runs there, or a router, a firewall or this host's routes prevent " +
			"packets from reaching it",
		"{counted}; the peers are {peers} | {counted}",
		"start ipoibd there, or correct --peer, the firewall or the route", "ip route get {peer}",
	}},
	{"no_peer_answers", Error, openDevices, noPeerAnswers, noAnswer, texts{
		"none of the peers has answered since the device was opened", "no packet has come from {peers}",
		"check that ipoibd runs there, with --peer and the address of this host, and that every firewall on the path " +
			"allows UDP port 4791",
		"ping -c 3 {peer}",
	}},
	{"address_duplicate", Error, addresses, func(s *subject) bool { return s.addr.Duplicate }, nil, texts{
		"another host on the IPoIB network has the same address, so the kernel does not use it here",
		"{address} has the flag dadfailed",
		"remove it here, and assign another one", "ip address del {address} dev {subject}",
	}},
}

// notices reports whether the daemon has noticed a condition of the device or interface, and adds its text to
// the words.
func (s *subject) notices(kind string) bool {
	var all report.Notices
	if s.ib != nil {
		all = s.ib.Notices
	} else {
		all = s.open.Notices
	}
	text := slices.DeleteFunc(slices.Clone(all), func(n report.Notice) bool { return n.Kind != kind }).Text()
	return s.sayIf(text != "", "notice", text)
}

// noticed returns whether the daemon has noticed a condition.
func noticed(kind string) func(*subject) bool {
	return func(s *subject) bool { return s.notices(kind) }
}

// counts reports whether a counter explains why peers are not reached, and describes it: it grows now, or it has
// grown and this device has no peer at all. A healthy device also counts such datagrams now and then, for
// example when a peer restarts.
func (s *subject) counts(counters ...string) bool {
	for _, name := range counters {
		total, grown, lonely := s.open.Counters[name].Value, s.grown(name), !s.hasPeers()
		if grown > 0 || total > 0 && lonely {
			text := fmt.Sprintf("%s is %d, %d more than %s before", name, total, grown, s.Watched)
			if lonely {
				text += "; no peer is known"
			}
			s.say("counted", text)
			return true
		}
	}
	return false
}

// counted returns whether a counter explains why peers are not reached.
func counted(counter string) func(*subject) bool {
	return func(s *subject) bool { return s.counts(counter) }
}

// grown returns by how much a counter has grown while it was watched.
func (s *subject) grown(counter string) uint64 {
	if s.was == nil {
		return 0
	}
	before, now := s.was.Counters[counter].Value, s.open.Counters[counter].Value
	return now - min(before, now)
}

// hasPeers reports whether an interface of the device has peers.
func (s *subject) hasPeers() bool {
	return slices.ContainsFunc(s.ibs, func(x *report.Interface) bool { return len(x.Peers) > 0 })
}

func duplicateAddress(s *subject) bool {
	return s.notices("duplicate_address") || s.counts(docs.DeviceRxOwnSource)
}

func familyMismatch(s *subject) bool {
	family := map[bool]string{true: "IPv4", false: "IPv6"}
	for _, x := range s.ibs {
		if x.QP == nil || len(s.open.Peers) == 0 {
			continue
		}
		gid := x.QP.GID.Addr().Unmap()
		if !slices.ContainsFunc(s.open.Peers, func(p netip.Addr) bool { return p.Unmap().Is4() == gid.Is4() }) {
			s.say("interface", x.Name, "gid", gid, "family", family[gid.Is4()], "other", family[!gid.Is4()])
			return true
		}
	}
	return false
}

// multicastOff needs a daemon, because before a start it is not known whether multicast is sent to a list of
// peers instead.
func multicastOff(s *subject) bool {
	if s.netdev.Multicast || s.netdev.Loopback || s.Status == nil {
		return false
	}
	d := s.reported(s.device)
	return d == nil || !d.Replicates
}

// pkeyMismatch needs a device without peers: if it has some, packets of other partitions are no problem.
func pkeyMismatch(s *subject) bool {
	var own []string
	for _, x := range s.ibs {
		if x.QP != nil {
			own = append(own, fmt.Sprintf("0x%04x", uint16(x.QP.PKey)))
		}
	}
	s.say("pkeys", strings.Join(own, ", "))
	return !s.hasPeers() && s.counts(docs.DeviceRxDropPKey, docs.DeviceRxOtherPKey)
}

func oneSidedPeer(s *subject) bool {
	return !s.open.Replicates && s.counts(docs.DeviceRxDropNoQP, docs.DeviceRxDropGroupQPN)
}

func peerRefuses(s *subject) bool {
	const sent, unrouted = docs.DeviceWireTxPackets, docs.DeviceWireTxDropNoRoute
	// An underlay that was down for a moment had no routes either. Datagrams have left since.
	mostly := s.open.Counters[unrouted].Value > s.open.Counters[sent].Value
	return s.counts(docs.DeviceWireICMPErrors) || (mostly || s.grown(unrouted) > 0) && s.counts(unrouted)
}

func noPeerAnswers(s *subject) bool { return s.notices("silent") && len(s.open.Peers) > 0 }

// maxListed bounds how many peers, and how many counters, a finding names.
const maxListed = 8

// listed joins the first addresses.
func listed(addrs []netip.Addr) string {
	var names []string
	for _, a := range addrs {
		names = append(names, a.String())
	}
	return strings.Join(atMost(names, "more"), ", ")
}

// atMost returns the first texts, and how many more there are.
func atMost(texts []string, more string) []string {
	if len(texts) <= maxListed {
		return texts
	}
	return append(texts[:maxListed:maxListed], fmt.Sprintf("%d %s", len(texts)-maxListed, more))
}
