package soft

import (
	"cmp"
	"net/netip"
	"time"

	"ipoibd/hca"
)

// paths remembers the narrow paths: those to destinations that carry less than the underlay's
// netdev. It is pure: the caller asks the kernel, and passes the time.
//
//	path      | the kernel says                     | then
//	wide      | as wide as the netdev               | wide
//	wide      | narrower                            | narrow, at once
//	narrow    | as narrow, or narrower              | narrow, at once
//	narrow    | wider, or unknown, or no longer     | narrow
//	          | used, for less than hold            |
//	narrow    | the same, for hold                  | as wide as the kernel says: a rise
//	narrow    | as before; a message longer than    | as wide as that, within what the
//	          | reported has passed: refuted        | route allows, for refutedFor
//
// The kernel forgets a report after 10 minutes (mtu_expires of ip-sysctl), and learns of a path
// that is still narrow only from a packet that is lost. So a path that turns out narrow soon
// after a rise was widened too early, and hold grows: traffic is disturbed at most twice an hour.
type paths struct {
	narrow map[netip.Addr]*narrowPath // at most maxNarrow
	hold   time.Duration
	risen  time.Time // the last rise; zero: none, or hold has grown since
}

type narrowPath struct {
	mtu       int       // to be used: the longest IP packet in bytes
	route     int       // that the route has, without reports of routers
	confirmed time.Time // when the kernel said mtu last
	refuted   time.Time // until when reports of routers are ignored
	passed    int       // the longest IP packet that has passed meanwhile
}

// carries returns the longest IP packet that the path is believed to carry.
func (n *narrowPath) carries(now time.Time) int {
	if now.Before(n.refuted) {
		return max(n.mtu, min(n.passed, n.route))
	}
	return n.mtu
}

// told records what the kernel says, if that is to be used.
func (n *narrowPath) told(now time.Time, mtu, route int) {
	n.mtu, n.route, n.confirmed = mtu, route, now
}

const (
	// maxNarrow bounds the remembered paths. Only the narrowest matters, and the others follow
	// it.
	maxNarrow = 64
	// firstHold is how long a path must be wide before it is used as such: longer than a
	// change of routes takes to settle.
	firstHold = 20 * time.Second
	lastHold  = 30 * time.Minute
	// refutedFor is how long a report is ignored that was refuted: how long packets may be lost if the path really
	// becomes narrow meanwhile.
	refutedFor = 10 * time.Second
	// relapse is how soon after a rise a path must turn out narrow for the rise to count as too early.
	relapse = time.Minute
)

// saw records what the kernel says about a destination: the MTU of the path, 0 if it is unknown,
// and of the route. full is the netdev's MTU.
func (p *paths) saw(now time.Time, dst netip.Addr, mtu, route, full int) {
	n := p.narrow[dst]
	switch {
	case n == nil && (mtu == 0 || mtu >= full):
	case n == nil:
		if p.makeRoom(now, mtu) {
			p.narrow[dst] = &narrowPath{mtu: mtu, route: route, confirmed: now}
			p.fell(now)
		}
	case mtu != 0 && mtu <= n.mtu:
		if mtu < n.mtu {
			p.fell(now)
		}
		n.told(now, mtu, route)
	case now.Sub(n.confirmed) < max(p.hold, firstHold): // remains narrow
	case mtu == 0 || mtu >= full:
		delete(p.narrow, dst)
		p.risen = now
	default:
		n.told(now, mtu, route)
		p.risen = now
	}
}

// refute ignores for a while reports that a path does not carry an IP packet of a length.
func (p *paths) refute(now time.Time, dst netip.Addr, length int) {
	if n := p.narrow[dst]; n != nil {
		if !now.Before(n.refuted) {
			n.passed = 0
		}
		n.refuted, n.passed = now.Add(refutedFor), max(n.passed, length)
	}
}

// makeRoom reports whether a path with this MTU can be remembered. If necessary it forgets the
// widest one.
func (p *paths) makeRoom(now time.Time, mtu int) bool {
	if p.narrow == nil {
		p.narrow = map[netip.Addr]*narrowPath{}
	}
	if len(p.narrow) < maxNarrow {
		return true
	}
	var widest netip.Addr
	for dst, n := range p.narrow {
		if !widest.IsValid() || n.carries(now) > p.narrow[widest].carries(now) {
			widest = dst
		}
	}
	if p.narrow[widest].carries(now) <= mtu {
		return false
	}
	delete(p.narrow, widest)
	return true
}

// fell records that a path has turned out narrow, or narrower.
func (p *paths) fell(now time.Time) {
	if !p.risen.IsZero() && now.Sub(p.risen) < relapse {
		p.hold = min(4*max(p.hold, firstHold), lastHold)
	} else if !p.risen.IsZero() {
		p.hold = firstHold
	}
	p.risen = time.Time{} // a rise is too early only once, however many paths turn out narrow
}

// minTrusted is the UD payload below which reports of routers do not lower a limit: an IPv6 packet
// of the smallest MTU of a link (RFC 8200, section 5), and the IPoIB header. Reports are not
// authenticated, and a smaller MTU would cost the interface its IPv6 addresses.
const minTrusted = 1280 + 4

// floor returns the smallest MTU of a path that reports of routers are trusted with.
func (p *port) floor(a netip.Addr) int {
	payload := minTrusted
	if p.strict { // only the standard's MTUs can be used
		for payload = 256; payload < minTrusted; payload *= 2 {
		}
	}
	return payload + overhead(a)
}

// limit returns the narrowest path from a GID of the same IP family, or the zero PathLimit if all
// paths carry what the netdev carries.
func (p *paths) limit(now time.Time, from *port, gid netip.Addr) (l hca.PathLimit) {
	full, floor := from.payload(gid, from.mtu), from.floor(gid)
	for dst, n := range p.narrow {
		mtu := n.carries(now)
		use := mtu
		if use < floor {
			use = max(use, min(floor, n.route))
		}
		is := hca.PathLimit{
			To: dst, MTU: mtu, Carries: from.payload(gid, mtu), MaxPayload: from.payload(gid, use),
			Reported: mtu < n.route,
		}
		if dst.Is4() != gid.Is4() || is.Carries >= full {
			continue
		}
		order := cmp.Or(
			cmp.Compare(is.MaxPayload, l.MaxPayload),
			cmp.Compare(is.MTU, l.MTU),
			is.To.Compare(l.To),
		)
		if l.To.IsValid() && order >= 0 {
			continue
		}
		l = is
	}
	if l.MaxPayload > full {
		l.MaxPayload = full // the floor is above what the netdev carries
	}
	return l
}
