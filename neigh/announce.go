package neigh

import (
	"encoding/binary"
	"net/netip"
	"time"

	"ipoibd/ud/ipoib"
)

// announcer schedules the announcements of a new address, at announceTimes. The zero value has none.
type announcer struct {
	start time.Time
	left  []time.Duration // until the rounds that are left
}

func (a *announcer) restart(now time.Time) { *a = announcer{now, announceTimes[:]} }

// next returns the time of the next round, or zero if none is left.
func (a *announcer) next() time.Time {
	if len(a.left) == 0 {
		return time.Time{}
	}
	return a.start.Add(a.left[0])
}

// due reports whether a round is due, and counts it as done. Missed rounds are
// skipped.
func (a *announcer) due(now time.Time) (due bool) {
	for at := a.next(); !at.IsZero() && !at.After(now); at = a.next() {
		a.left, due = a.left[1:], true
	}
	return due
}

// announceDue announces every address of the host to the fabric, if an announcement
// is due.
func (h *host) announceDue() {
	if !h.link.up || !h.news.due(h.step.now) {
		return
	}
	for _, ip := range h.ips.all() {
		h.sendGroup(h.announcement(ip))
	}
}

// announcement counts and returns a message that announces an address of the host: a
// gratuitous ARP request (RFC 5227 section 3) or an unsolicited neighbour advertisement
// (RFC 4861 section 7.2.6).
func (h *host) announcement(ip netip.Addr) []byte {
	h.step.stats.Announcements++
	if ip.Is4() {
		return h.newRequest(ip, ip)
	}
	msg := ipoib.AppendUnsolicitedNA(newMessage(ipoib.EtherTypeIPv6), ip, h.link.addr())
	if h.ips.router {
		setRouterFlag(msg[ipoib.HeaderLen:])
	}
	return msg
}

// setRouterFlag sets the router flag of a neighbour advertisement, in which it
// must be clear, and updates the checksum (RFC 1624). Without the flag,
// receivers would remove the router from their lists (RFC 4861 section 7.2.5).
func setRouterFlag(packet []byte) {
	const checksum, flags = 40 + 2, 40 + 4 // behind the IPv6 header, RFC 4861 section 4.4
	packet[flags] |= ipoib.NAFlagRouter
	sum := uint32(^binary.BigEndian.Uint16(packet[checksum:])) + uint32(ipoib.NAFlagRouter)<<8
	binary.BigEndian.PutUint16(packet[checksum:], ^uint16(sum+sum>>16))
}
