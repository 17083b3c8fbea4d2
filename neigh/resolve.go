package neigh

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/ud/ipoib"
)

// resolution is an address being resolved, on the fabric or on ib0.
//
//	start   send a request; keep the frames
//	pause   repeat the request
//	answer  send the frames there
//	silence give up
type resolution struct {
	ip    netip.Addr
	src   netip.Addr // of the first frame; the zero Addr: none
	from  ipoib.MAC  // likewise
	began time.Time
	tries int
	alarm alarm[*resolution]
	kept  queue // frames
}

// resolver holds the active resolutions of one side.
type resolver struct {
	step     *step
	interval time.Duration     // between requests
	tries    int               // requests
	bytes    int               // kept in all queues, beyond which it keeps nothing
	share    int               // addresses for the frames of one MAC
	ask      func(*resolution) // sends a request
	giveUp   func(*resolution) // takes what was kept, since no request was answered
	byIP     map[netip.Addr]*resolution
	retries  alarms[*resolution]
}

// await keeps a frame for the owner of ip, which it resolves. The frame's source address is src, or
// none. The resolver keeps raw.
func (s *resolver) await(ip, src netip.Addr, raw []byte) {
	r := s.byIP[ip]
	if r == nil {
		if len(s.byIP) >= maxResolutions || s.of(ipoib.MAC(raw[6:])) >= s.share {
			s.step.drop(DropResolveLimit)
			return
		}
		r = &resolution{ip: ip, src: src, from: ipoib.MAC(raw[6:]), began: s.step.now}
		s.byIP[ip] = r
		s.request(r)
	}
	s.step.keep(&r.kept, raw, s.bytes)
}

// of returns how many addresses are being resolved for the frames of a MAC.
func (s *resolver) of(from ipoib.MAC) (n int) {
	for _, r := range s.byIP {
		if r.from == from {
			n++
		}
	}
	return n
}

// request requests an address that is being resolved, for the first time or again, or gives up.
func (s *resolver) request(r *resolution) {
	if r.tries >= s.tries {
		s.remove(r)
		s.giveUp(r)
		return
	}
	r.tries++
	s.retries.set(&r.alarm, r, s.step.now.Add(s.interval))
	s.ask(r)
}

// expire repeats the requests that are due.
func (s *resolver) expire() {
	for r, ok := s.retries.due(s.step.now); ok; r, ok = s.retries.due(s.step.now) {
		s.request(r)
	}
}

func (s *resolver) remove(r *resolution) {
	delete(s.byIP, r.ip)
	s.retries.stop(&r.alarm)
}

// end ends the resolution of ip, which has been answered, and returns it; nil: there is none. The caller takes what
// was kept.
func (s *resolver) end(ip netip.Addr) *resolution {
	r := s.byIP[ip]
	if r != nil {
		s.step.stats.Resolved.Observe(s.step.now.Sub(r.began))
		s.remove(r)
	}
	return r
}

// detach gives up all resolutions.
func (s *resolver) detach() {
	for _, r := range s.byIP {
		s.step.dropKept(&r.kept, DropDetached)
		s.remove(r)
	}
}

// hints are the IP addresses of each MAC in the kernel's cache.
type hints map[ipoib.MAC][]netip.Addr

func newHints(entries []Neighbour) hints {
	h := make(hints)
	for _, n := range entries[:min(len(entries), maxHints)] {
		if ip := n.IP.Unmap().WithZone(""); isUnicast(ip) {
			h[n.MAC] = append(h[n.MAC], ip)
		}
	}
	return h
}

// denies reports whether the hints contradict giving m to the claimant of ip: they
// have addresses of the same kind as ip at m, but not ip.
func (h hints) denies(m ipoib.MAC, ip netip.Addr) bool {
	known := h[m]
	return isUnicast(ip) && !slices.Contains(known, ip) &&
		slices.ContainsFunc(known, func(k netip.Addr) bool { return sameKind(k, ip) })
}

// sameKind reports whether a and b have the same family and scope.
func sameKind(a, b netip.Addr) bool {
	return a.Is4() == b.Is4() && a.IsLinkLocalUnicast() == b.IsLinkLocalUnicast()
}

// target returns the address to resolve for a packet that was sent to a MAC with the
// believed addresses: one of them, preferably of dst's family, because dst may be
// behind a router. If there are none, it is dst itself.
func target(believed []netip.Addr, dst netip.Addr) netip.Addr {
	if len(believed) == 0 || slices.Contains(believed, dst) {
		return dst
	}
	for _, ip := range slices.Backward(believed) {
		if ip.Is6() == dst.Is6() {
			return ip
		}
	}
	return believed[len(believed)-1]
}

// resolve handles a frame from the host to a MAC of no peer. It resolves one of the IP
// addresses that the host may associate with the MAC, and keeps the frame until then. These
// are the addresses of the removed peer that had the MAC, or else those in the kernel's
// cache.
func (t *Table) resolve(f frame) {
	src, dst := f.ips()
	believed := t.peers.hints[f.dst]
	if p := t.peers.past.byMAC[f.dst]; p != nil && len(p.ips) > 0 {
		believed = p.ips
	}
	ip := target(believed, dst)
	if !isUnicast(ip) || t.host.stations.has(ip) {
		t.step.drop(DropUnresolvable)
		return
	}
	if p := t.peers.live.byIP[ip]; p != nil {
		t.correct(p, ip, src)
		f.raw = slices.Clone(f.raw)
		t.route(f.readdressed(p.mac), false)
		return
	}
	t.resolver.await(ip, src, slices.Clone(f.raw))
}

// resolved is called when p has claimed ip. It sends the frames kept for ip to p.
func (t *Table) resolved(ip netip.Addr, p *peer) {
	r := t.resolver.end(ip)
	if r == nil {
		return
	}
	for _, raw := range t.step.drain(&r.kept) {
		f, _ := parseFrame(raw)
		t.route(f.readdressed(p.mac), true)
	}
}

// correct informs the host, in p's name, that ip is at p: by an ARP reply, or by a
// neighbour solicitation, which updates the host's cache like an advertisement (RFC 4861
// section 7.2.3) but does not state whether p is a router. asker is the source of the
// host's packet. It does so at most once per correctInterval.
func (t *Table) correct(p *peer, ip, asker netip.Addr) {
	if !p.corrected.IsZero() && t.step.now.Sub(p.corrected) < correctInterval {
		return
	}
	if asker = t.host.stations.source(ip, asker); asker.IsUnspecified() {
		return
	}
	var frame []byte
	if ip.Is4() {
		to := t.host.stations.dest(asker)
		arp := ipoib.EtherARP{Op: ipoib.ARPReply, SHA: p.mac, SPA: ip, THA: to, TPA: asker}
		frame = padded(arp.Append(newFrame(to, p.mac, ipoib.EtherTypeARP)))
	} else {
		var err error
		packet := ipoib.AppendNS(nil, ip, asker, p.addr())
		if frame, err = t.translator.etherND(p, packet, ipoib.GroupMAC(ipoib.SolicitedNode(asker)), p.endpoint); err != nil {
			return
		}
	}
	p.corrected = t.step.now
	t.step.stats.Corrections++
	t.step.emit(SendHost{frame})
}
