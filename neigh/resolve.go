package neigh

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// resolution is an address being asked for, because the host sends frames to a
// MAC that nobody is known to have: its cache may outlive our table.
//
//	start   ask; keep the frames
//	1 s     ask again, resolveTries times in all
//	answer  the host sees it too, and learns the right MAC; the frames go there
//	silence drop the frames
type resolution struct {
	ip    netip.Addr
	src   netip.Addr // in whose name is asked
	tries int
	alarm alarm[*resolution]
	kept  queue // frames
}

// resolver holds the resolutions under way, and the hints.
type resolver struct {
	byIP    map[netip.Addr]*resolution
	retries alarms[*resolution]
	hints   map[ipoib.MAC][]netip.Addr // the addresses that the kernel believes to be at a MAC
}

func (r *resolver) init() { r.byIP = make(map[netip.Addr]*resolution) }

// setHints replaces the hints.
func (r *resolver) setHints(entries []Neighbour) {
	r.hints = make(map[ipoib.MAC][]netip.Addr)
	for _, n := range entries[:min(len(entries), maxHints)] {
		if ip := n.IP.Unmap().WithZone(""); isUnicast(ip) {
			r.hints[n.MAC] = append(r.hints[n.MAC], ip)
		}
	}
}

// denies reports whether the kernel believes that m does not belong to the claimant of
// ip: it knows addresses of that kind at m, and ip is not one of them.
func (r *resolver) denies(m ipoib.MAC, ip netip.Addr) bool {
	known := r.hints[m]
	return isUnicast(ip) && !slices.Contains(known, ip) &&
		slices.ContainsFunc(known, func(k netip.Addr) bool { return sameKind(k, ip) })
}

// sameKind reports whether a and b are of one family and one scope.
func sameKind(a, b netip.Addr) bool {
	return a.Is4() == b.Is4() && a.IsLinkLocalUnicast() == b.IsLinkLocalUnicast()
}

// believed returns the addresses that the host may believe to be at a MAC that no peer
// has: those of the forgotten peer that had the MAC, or else those in the kernel's cache.
func (t *Table) believed(m ipoib.MAC) []netip.Addr {
	if p := t.past.byMAC[m]; p != nil && len(p.ips) > 0 {
		return p.ips
	}
	return t.resolver.hints[m]
}

// target returns the address to ask for when a packet for dst was sent to a MAC where
// these addresses are believed to be: one of them, of dst's family first, since dst may
// be beyond a router. Without any it is dst itself.
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

// resolve takes a frame of the host to a MAC that no peer has.
func (t *Table) resolve(f frame) {
	src, dst := f.ips()
	ip := target(t.believed(f.dst), dst)
	if !isUnicast(ip) || t.hosts.has(ip) {
		t.drop(DropUnresolvable)
		return
	}
	if p := t.peers.byIP[ip]; p != nil {
		t.correct(p, ip, src)
		f.raw = slices.Clone(f.raw)
		t.route(f.readdressed(p.mac), false)
		return
	}
	t.await(ip, src, f)
}

// await keeps a frame until ip has answered.
func (t *Table) await(ip, src netip.Addr, f frame) {
	r := t.resolver.byIP[ip]
	if r == nil {
		if len(t.resolver.byIP) >= maxResolutions {
			t.drop(DropResolveLimit)
			return
		}
		r = &resolution{ip: ip, src: t.hosts.source(ip, src)}
		t.resolver.byIP[ip] = r
		t.request(r)
	}
	t.keep(&r.kept, slices.Clone(f.raw))
}

// askAgain is called when nobody has answered in time.
func (t *Table) askAgain(r *resolution) {
	if r.tries >= resolveTries {
		t.giveUp(r, DropUnresolved)
		return
	}
	t.request(r)
}

func (t *Table) request(r *resolution) {
	r.tries++
	t.resolver.retries.set(&r.alarm, r, t.now.Add(resolveInterval))
	t.ask(r.src, r.ip)
}

// askForHost asks for addresses of others in the name of the host, which sees
// the answers. Without an address of its own nobody could answer it.
func (t *Table) askForHost(targets []netip.Addr) {
	if !t.link.up {
		return
	}
	for _, ip := range targets[:min(len(targets), maxHostAsks)] {
		ip = ip.Unmap().WithZone("")
		source := t.hosts.source(ip, netip.Addr{})
		if !isUnicast(ip) || t.hosts.has(ip) || source.IsUnspecified() {
			continue
		}
		t.ask(source, ip)
	}
}

// ask asks the fabric for target in the name of source.
func (t *Table) ask(source, target netip.Addr) {
	t.stats.Requests++
	t.sendGroup(t.question(source, target))
}

// question returns a message that asks for target in the name of source: an ARP
// request (RFC 826) or a neighbour solicitation (RFC 4861 section 7.2.2).
func (t *Table) question(source, target netip.Addr) []byte {
	if target.Is4() {
		arp := ipoib.ARP{Op: ipoib.ARPRequest, SHA: t.link.addr(), SPA: source, TPA: target}
		return arp.Append(newMessage(ipoib.EtherTypeARP))
	}
	return ipoib.AppendNS(newMessage(ipoib.EtherTypeIPv6), source, target, t.link.addr())
}

// answered is called when p has claimed ip: the frames kept for it go there.
func (t *Table) answered(ip netip.Addr, p *peer) {
	r := t.resolver.byIP[ip]
	if r == nil {
		return
	}
	for _, raw := range t.endResolution(r) {
		f, _ := parseFrame(raw)
		t.route(f.readdressed(p.mac), true)
	}
}

func (t *Table) giveUp(r *resolution, why Reason) {
	t.stats.Drops[why] += uint64(len(t.endResolution(r)))
}

// endResolution forgets r and returns what was kept.
func (t *Table) endResolution(r *resolution) [][]byte {
	delete(t.resolver.byIP, r.ip)
	t.resolver.retries.stop(&r.alarm)
	return t.kept.take(&r.kept)
}
