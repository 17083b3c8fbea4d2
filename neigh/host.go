package neigh

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// host is the interface's own side: its queue pair, and the stations, whose addresses it announces
// and in whose name it asks.
type host struct {
	step     *step
	link     attachment
	stations stations
	port     *HostPort // nil: not reported yet
	news     announcer
}

// setAddrs stores the host's addresses and announces new ones.
func (h *host) setAddrs(ev HostAddrs) {
	if h.stations.setGiven(ev.Addrs) {
		h.news.restart(h.step.now)
		h.announceDue()
	}
}

// ask sends requests in the name of the host, which receives the answers. If the host has no
// address of the family, it sends none, because no one could answer.
func (h *host) ask(targets []netip.Addr) {
	if !h.link.up {
		return
	}
	for _, ip := range targets[:min(len(targets), maxHostAsks)] {
		ip = ip.Unmap().WithZone("")
		source := h.stations.source(ip, netip.Addr{})
		if isUnicast(ip) && !h.stations.has(ip) && !source.IsUnspecified() {
			h.sendRequest(source, ip)
		}
	}
}

// sendRequest sends a request for target from source to the fabric.
func (h *host) sendRequest(source, target netip.Addr) {
	h.step.stats.Requests++
	h.sendGroup(h.newRequest(source, target))
}

// newRequest returns a request for target from source: an ARP request (RFC 826)
// or a neighbour solicitation (RFC 4861 section 7.2.2).
func (h *host) newRequest(source, target netip.Addr) []byte {
	if target.Is4() {
		arp := ipoib.ARP{Op: ipoib.ARPRequest, SHA: h.link.addr(), SPA: source, TPA: target}
		return arp.Append(newMessage(ipoib.EtherTypeARP))
	}
	return ipoib.AppendNS(newMessage(ipoib.EtherTypeIPv6), source, target, h.link.addr())
}

// sendGroup sends a message to the broadcast group, to which every member is attached.
func (h *host) sendGroup(msg []byte) { h.step.emit(SendFabric{h.link.broadcast, msg}) }

// isLooped reports whether m is a MAC under which others see this interface: a frame from it has come back, through
// another host that bridges the same Ethernet network.
func (h *host) isLooped(m ipoib.MAC) bool {
	return m != h.stations.own.mac && slices.Contains(h.link.macs[:], m)
}

// deliver sends a frame to the host.
func (h *host) deliver(frame []byte) {
	h.step.stats.ToHost++
	h.step.emit(SendHost{padded(frame)})
}
