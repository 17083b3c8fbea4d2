package neigh

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"ipoibd/ud/ipoib"
)

// announcer schedules the announcements of a new address, at announceTimes. The zero value has none.
type announcer struct {
	start time.Time
	left  []time.Duration // until the rounds that are left
	queue []netip.Addr    // of the present round, not announced yet
	again time.Time       // when to announce the next of them
}

func (a *announcer) restart(now time.Time) { *a = announcer{start: now, left: announceTimes[:]} }

// next returns when something is to be announced, or zero for never.
func (a *announcer) next() time.Time {
	switch {
	case len(a.queue) > 0:
		return a.again
	case len(a.left) > 0:
		return a.start.Add(a.left[0])
	}
	return time.Time{}
}

// announceDue announces the addresses of the stations to the fabric, if that is due: announceBatch at a time, so that
// thousands do not crowd out what the host sends.
func (h *host) announceDue() {
	a, now := &h.news, h.step.now
	if at := a.next(); !h.link.up || at.IsZero() || at.After(now) {
		return
	}
	if len(a.queue) == 0 { // a round begins, and those that were missed are skipped
		a.queue = slices.Collect(h.stations.all())
		for len(a.left) > 0 && !a.start.Add(a.left[0]).After(now) {
			a.left = a.left[1:]
		}
	}
	batch := a.queue[:min(len(a.queue), announceBatch)]
	for _, ip := range batch {
		if h.stations.has(ip) {
			h.sendGroup(h.announcement(ip))
		}
	}
	a.queue, a.again = a.queue[len(batch):], now.Add(announcePause)
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
	if h.stations.isRouter(ip) {
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
