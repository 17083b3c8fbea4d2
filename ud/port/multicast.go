package port

import (
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// MaxGroups bounds the groups of an interface on InfiniBand, the broadcast group included. Each takes one of the
// 16,383 MLIDs of the subnet (IBA 4.1.3), and guests can ask for any number.
const MaxGroups = 256

// MulticastList chooses the groups that an interface on InfiniBand joins besides the broadcast group, from the IP
// multicast groups that the host and the stations behind it want. All nodes are in those of all nodes (RFC 1112 section
// 4, RFC 4291 section 2.8). If more are wanted than [MaxGroups] allows, those of the host go before those of stations,
// and among either those that were chosen before: a guest cannot displace the groups of others by wanting more.
type MulticastList struct {
	pkey      hca.PKey
	chosen    []hca.GID // in the order in which they were chosen
	excess    int
	postponed bool
}

// NewMulticastList returns an empty list for a partition.
func NewMulticastList(pkey hca.PKey) *MulticastList { return &MulticastList{pkey: pkey} }

// Excess returns how many of the groups wanted last have not been chosen.
func (l *MulticastList) Excess() int { return l.excess }

// Postponed reports whether some of these may be chosen by calling Want again later.
func (l *MulticastList) Postponed() bool { return l.postponed }

// Want replaces the groups that are wanted, which may be listed several times. It returns the groups to join and to
// leave, so that the interface is a member of the chosen ones. Of new groups, those listed first are chosen first.
//
// allow is called for each new group that only stations want, until it returns false: that group and the rest are
// postponed.
func (l *MulticastList) Want(host, behind []netip.Addr, allow func() bool) (join, leave []hca.GID) {
	const ofStations = 1
	lists := [...][]hca.GID{l.groups(slices.Concat(everyNode[:], host)), ofStations: l.groups(behind)}
	owner := make(map[hca.GID]int, len(lists[0])+len(lists[1])) // the first list that has it
	for i, list := range lists {
		for _, g := range list {
			if _, ok := owner[g]; !ok {
				owner[g] = i
			}
		}
	}
	l.excess, l.postponed = len(owner), false
	var best []hca.GID
	for i, list := range lists {
		for j, g := range slices.Concat(l.chosen, list) {
			if of, ok := owner[g]; !ok || of != i || len(best) == MaxGroups-1 {
				continue
			}
			delete(owner, g)
			if isNew := j >= len(l.chosen); isNew && i == ofStations && (l.postponed || !allow()) {
				l.postponed = true
				continue
			}
			best = append(best, g)
		}
	}
	l.excess -= len(best)
	join, leave = without(best, l.chosen), without(l.chosen, best)
	l.chosen = append(without(l.chosen, leave), join...)
	return join, leave
}

// everyNode are the groups of all nodes on the link.
var everyNode = [...]netip.Addr{netip.AddrFrom4([4]byte{224, 0, 0, 1}), netip.IPv6LinkLocalAllNodes()}

// groups returns the groups of IP addresses. Messages to an interface-local group stay on their node (RFC 4291 section
// 2.7).
func (l *MulticastList) groups(ips []netip.Addr) (out []hca.GID) {
	for _, ip := range ips {
		if ip.IsMulticast() && !ip.IsInterfaceLocalMulticast() {
			out = append(out, ipoib.GroupMGID(ipoib.ScopeLinkLocal, l.pkey, ip.Unmap()))
		}
	}
	return out
}

// without returns the groups of a list that are not in another one.
func without(list, other []hca.GID) []hca.GID {
	return slices.DeleteFunc(slices.Clone(list), func(g hca.GID) bool { return slices.Contains(other, g) })
}
