package neigh

import "ipoibd/ud/ipoib"

// ping sends an echo request to a peer, when its address and its handle are known.
func (t *Table) ping(ev Ping) {
	t.step.stats.Pings++
	ip := ev.IP.Unmap().WithZone("")
	p := t.peers.live.byEndpoint[endpoint{ev.GID, ev.QPN}]
	if ip.IsValid() {
		p = t.peers.live.byIP[ip]
	}
	msg := ipoib.Echo{ID: ev.ID}.Message(max(ev.Size, ipoib.MinEcho))
	switch {
	case !t.host.link.up:
		t.step.drop(DropDetached)
	case len(msg)-ipoib.HeaderLen > t.host.link.portMTU:
		t.step.drop(DropOversize)
	case p != nil:
		t.introduce(p)
		t.handles.send(p, outgoing{msg: msg, control: true})
	case !ip.IsValid():
		t.step.drop(DropEchoStranger)
	case !isUnicast(ip) || t.host.stations.has(ip):
		t.step.drop(DropUnresolvable)
	default:
		// In the form of a frame, as resolutions keep them.
		frame := newFrame(ipoib.MAC{}, t.host.stations.own.mac, ipoib.EtherTypeEcho)
		t.resolver.await(ip, t.host.stations.source(ip, ip), append(frame, msg[ipoib.HeaderLen:]...))
	}
}

// introduce makes p learn of this host, by a request for an address of p, unless the host has sent
// data to it. Otherwise p might have missed the announcements of this host, and would not answer an
// echo request. These requests go to the whole group, so they are as few as those for silent peers.
func (t *Table) introduce(p *peer) {
	if n := len(p.ips); n > 0 && !p.used && t.introductions.allow(t.step.now, maxAskRate) {
		ip := p.ips[n-1]
		t.host.sendRequest(t.host.stations.source(ip, ip), ip)
	}
}

// fabricEcho answers an echo request of a peer, or passes on a reply.
func (t *Table) fabricEcho(e endpoint, body []byte, multicast bool) {
	echo, err := ipoib.ParseEcho(body)
	p := t.peers.live.byEndpoint[e]
	switch {
	case err != nil || multicast:
		t.step.drop(DropBadEcho)
	case echo.Reply:
		t.step.stats.EchoReplies++
		t.step.emit(EchoReply{echo.ID, e.gid, e.qpn, len(body)})
	case p == nil:
		t.step.drop(DropEchoStranger)
	case !t.echoes.allow(t.step.now, maxEchoRate):
		t.step.drop(DropEchoLimit)
	default:
		t.handles.send(p, outgoing{msg: ipoib.Echo{Reply: true, ID: echo.ID}.Message(len(body)), control: true})
	}
}
