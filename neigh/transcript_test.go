package neigh

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery/transcript"
	"ipoibd/ud/ipoib"
)

// TestTranscripts plays testdata/*.txt (see package transcript). An input is
//
//	peer NAME qpn N gid A      name an endpoint
//	attach NAME [lid N lmc N] | detach
//	mac MAC | addrs IP... | port [MAC] | neighbours IP=MAC... | asks IP...
//	host [from MAC] [to MAC] WHAT
//	fabric NAME [lid N] unicast|multicast [as NAME] WHAT
//	ah ready N | ah failed N timeout|invalid
//	path found NAME lid N [sl N] | path failed NAME
//	advance DURATION
//	flood N                    ARP requests of invented peers for 10.0.0.1
//	stray NAME                 a datagram from NAME for a QPN that no longer exists
//	busy MAC                   the data path sends to MAC
//	data NAME [lid N]          the data path receives from NAME
//	flow MAC DURATION          the data path keeps sending to MAC
//	talk NAME DURATION         the data path keeps sending to NAME and receiving from it
//	ping IP or NAME id N size N
//	collide NAME | stats | peers | groups
//	wanted                     the groups of the host and of the stations behind it
//
// WHAT is one of
//
//	arp request|reply IP > IP
//	rs|ra|ns|na|redirect IP > IP [target IP] [link MAC or NAME]
//	ip IP > IP
//	join|leave|report IP...    from the host: IGMP or MLD; a report answers a query
//	query from IP              IGMP or MLD
//	echo request|reply id N    from the fabric
//
// A MAC is written out, or is own, broadcast, or @NAME for the MAC that the table has
// assigned to a peer.
func TestTranscripts(t *testing.T) {
	transcript.Each(t, func(t *testing.T, script string) string {
		p := newPlayer(t)
		return transcript.Play(script, func(line string) []string { return p.line(strings.Fields(line)) })
	})
}

// player plays one transcript.
type player struct {
	*bench
	names
	ends map[string]endpoint
}

func newPlayer(t *testing.T) *player {
	return &player{
		bench: newBench(t, Config{}),
		names: names{macs: map[ipoib.MAC]string{}, ends: map[endpoint]string{}},
		ends:  map[string]endpoint{},
	}
}

// line plays one input.
func (p *player) line(w []string) []string {
	p.tb.Helper()
	switch w[0] {
	case "peer":
		p.name(w[1], endpoint{gidOf(w[5]), hca.QPN(transcript.Number(p.tb, w[3]))})
		return nil
	case "advance":
		return p.advanceBy(w[1])
	case "data":
		w, lid := p.lidOption(w)
		m, bytes := p.snap.PeerMAC(p.end(w[1]).sourceAt(lid, false))
		if lid == 0 {
			return nil
		}
		return []string{fmt.Sprintf("from %s, known to the data path: %v", p.mac(m), bytes != nil)}
	case "flow":
		return p.flow(p.macArg(w[1]), nil, w[2])
	case "talk":
		e := p.end(w[1])
		return p.flow(p.macOf(e), &e, w[2])
	case "flood":
		return p.flood(transcript.Number(p.tb, w[1]))
	case "busy":
		_, _, ok := p.snap.Unicast(p.macArg(w[1]))
		return []string{fmt.Sprintf("known to the data path: %v", ok)}
	case "stats":
		return counters(p.table.Stats())
	case "peers":
		return p.list()
	case "groups":
		return p.groups()
	case "wanted":
		host, behind := p.table.Groups()
		return []string{fmt.Sprintf("host %v, behind %v", host, behind)}
	}
	before := p.table.Stats()
	out := p.describe(p.step(p.event(w)))
	return append(out, dropped(before, p.table.Stats())...)
}

// name gives an endpoint a name; the previous holder of the name loses it.
func (p *player) name(name string, e endpoint) {
	delete(p.names.ends, p.ends[name])
	p.ends[name], p.names.ends[e] = e, name
}

func (p *player) describe(actions []Action) (out []string) {
	for name, e := range p.ends {
		if peer := p.table.peers.live.byEndpoint[e]; peer != nil {
			p.macs[peer.mac] = "@" + name
		}
	}
	p.macs[p.table.host.stations.own.mac] = "own"
	for _, a := range actions {
		out = append(out, p.action(a))
	}
	return out
}

func (p *player) advanceBy(arg string) (out []string) { return p.flow(ipoib.MAC{}, nil, arg) }

// flow advances the time while the data path keeps sending to a MAC, unless it is zero,
// and keeps receiving from a peer, unless it is nil.
func (p *player) flow(to ipoib.MAC, from *endpoint, arg string) (out []string) {
	d, err := time.ParseDuration(arg)
	if err != nil {
		p.tb.Fatal(err)
	}
	for end := p.now.Add(d); p.now.Before(end); {
		if !to.IsZero() {
			p.snap.Unicast(to)
		}
		if from != nil {
			p.snap.PeerMAC(from.key())
		}
		before := p.table.Stats()
		at, ok := p.table.NextDeadline()
		if !ok || at.After(end) {
			at = end
		}
		actions := p.advance(at.Sub(p.now))
		for _, o := range append(p.describe(actions), dropped(before, p.table.Stats())...) {
			out = append(out, fmt.Sprintf("+%v %s", p.now.Sub(end.Add(-d)), o))
		}
	}
	return out
}

// flood makes n peers, each with its own GID, resolve the host's address, and makes the
// host answer each of them.
func (p *player) flood(n int) []string {
	before := p.table.Stats()
	for i := range n {
		a := netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
		e := endpoint{hca.GIDFromAddr(a), 0x99}
		p.quickStep(fabricARP(e, ipoib.ARPRequest, a.String(), ipA, true))
		p.quickStep(hostARP(ownMAC, p.macOf(e), ipoib.ARPReply, ipA, a.String()))
		p.now = p.now.Add(10 * time.Microsecond)
	}
	if err := p.table.check(); err != nil {
		p.tb.Fatal(err)
	}
	return dropped(before, p.table.Stats())
}

// quickStep applies an event without the checks, which cost O(peers), and
// answers requests for handles.
func (p *player) quickStep(ev Event) {
	for _, a := range p.table.Step(p.now, ev, nil) {
		switch a := a.(type) {
		case Publish:
			p.snap = a.Snapshot
		case CreateAH:
			p.quickStep(AHReady{a.ID, &fakeAH{"flooder"}})
		}
	}
}

func (p *player) list() (out []string) {
	for _, i := range p.table.Peers() {
		out = append(out, fmt.Sprintf("%s mac %s ips %v used %v handle %s", p.addr(ipoib.NewAddr(i.QPN, i.GID)), i.MAC, i.IPs, i.Used, i.Handle))
	}
	return sorted(out)
}

func (p *player) groups() (out []string) {
	for _, s := range p.table.Stations() {
		out = append(out, fmt.Sprintf("%v: %v", p.mac(s.MAC), s.Groups))
	}
	return out
}

// dropped lists the frames that were dropped between two readings of the
// counters.
func dropped(before, after Stats) (out []string) {
	for r := range NumReason {
		if n := after.Drops[r] - before.Drops[r]; n > 0 {
			out = append(out, fmt.Sprintf("drop %d %v", n, r))
		}
	}
	if n := after.Kept - before.Kept; n > 0 {
		out = append(out, fmt.Sprintf("keep %d", n))
	}
	return out
}

// event parses an input that is an event.
func (p *player) event(w []string) Event {
	p.tb.Helper()
	switch w[0] {
	case "attach":
		w, lmc := option(w, "lmc")
		w, lid := p.lidOption(w)
		ev := attachedAt(p.end(w[1]))
		if ev.LID = lid; lmc != "" {
			ev.LMC = uint8(transcript.Number(p.tb, lmc))
		}
		return ev
	case "detach":
		return Detached{}
	case "mac":
		return HostMAC{p.macArg(w[1])}
	case "collide":
		return HostMAC{p.macOf(p.end(w[1]))}
	case "addrs":
		return given(ipList(w[1:])...)
	case "port":
		if len(w) > 1 {
			m := p.macArg(w[1])
			return HostPort{Up: true, Bridge: int(m[5]), Master: m}
		}
		return HostPort{Up: true}
	case "neighbours":
		return p.neighbours(w[1:])
	case "stray":
		e := p.end(w[1])
		return Stray{e.gid, e.qpn}
	case "ping":
		return p.pingEvent(w[1:])
	case "asks":
		return HostAsks{Targets: ipList(w[1:])}
	case "ah":
		return p.ahEvent(w[1:])
	case "path":
		return p.pathEvent(w[1:])
	case "host":
		return p.hostEvent(w[1:])
	case "fabric":
		w, lid := p.lidOption(w[1:])
		ev := p.fabricEvent(w)
		if lid != 0 {
			ev.From = p.end(w[0]).sourceAt(lid, ev.Multicast)
		}
		return ev
	}
	p.tb.Fatalf("unknown input %q", w)
	return nil
}

func (p *player) neighbours(w []string) (ev HostNeighbours) {
	for _, entry := range w {
		addr, mac, _ := strings.Cut(entry, "=")
		ev.Entries = append(ev.Entries, Neighbour{ip(addr), p.macArg(mac)})
	}
	return ev
}

func (p *player) ahEvent(w []string) Event {
	id := uint64(transcript.Number(p.tb, w[1]))
	switch {
	case w[0] == "ready":
		return AHReady{id, &fakeAH{"ah" + w[1]}}
	case w[2] == "invalid":
		return AHFailed{id, &hca.VerbError{Verb: "create_ah", Err: hca.ErrInvalid}}
	}
	return AHFailed{id, &hca.VerbError{Verb: "create_ah", Err: hca.ErrTimeout}}
}

func (p *player) pathEvent(w []string) Event {
	gid := p.end(w[1]).gid
	if w[0] == "failed" {
		return PathFailed{gid}
	}
	w, sl := option(w, "sl")
	_, lid := p.lidOption(w)
	path := hca.UDPath{DLID: lid}
	if sl != "" {
		path.SL = uint8(transcript.Number(p.tb, sl))
	}
	return PathFound{gid, path}
}

// lidOption removes "lid N" from w; without it the LID is 0.
func (p *player) lidOption(w []string) (rest []string, lid hca.LID) {
	w, value := option(w, "lid")
	if value != "" {
		lid = hca.LID(transcript.Number(p.tb, value))
	}
	return w, lid
}

func (p *player) pingEvent(w []string) Event {
	ev := Ping{ID: uint64(transcript.Number(p.tb, w[2])), Size: transcript.Number(p.tb, w[4])}
	if e, ok := p.ends[w[0]]; ok {
		ev.GID, ev.QPN = e.gid, e.qpn
	} else {
		ev.IP = ip(w[0])
	}
	return ev
}

func (p *player) hostEvent(w []string) Event {
	src, dst := ownMAC, ipoib.Broadcast
	w, from := option(w, "from")
	w, to := option(w, "to")
	if from != "" {
		src = p.macArg(from)
	}
	if to != "" {
		dst = p.macArg(to)
	}
	switch w[0] {
	case "arp":
		return hostARP(src, dst, arpOp(w[1]), w[2], w[4])
	case "ip":
		return hostIP(src, dst, ip(w[1]), ip(w[3]))
	case "join", "leave", "report":
		kind := map[string]byte{"join": recordJoin, "leave": recordLeave, "report": recordIs}[w[0]]
		groups := ipList(w[1:])
		to := ip("224.0.0.22")
		if groups[0].Is6() {
			to = ip("ff02::16")
		}
		return FromHost{append(newFrame(ipoib.GroupMAC(to), src, etherTypeFor(to)), groupReport(kind, groups)...)}
	case "query":
		packet := ipoib.AppendMembershipQuery(nil, ip(w[2]))
		to, _ := ipoib.DestIP(etherTypeFor(ip(w[2])), packet)
		return FromHost{append(newFrame(ipoib.GroupMAC(to), src, etherTypeFor(to)), packet...)}
	}
	m, link := p.ndArgs(w)
	if to == "" {
		dst = ipoib.GroupMAC(m.dst)
	}
	if link != "" {
		m.options = etherLink(linkType(m.typ), p.macArg(link))
	}
	return hostND(src, dst, m)
}

func (p *player) fabricEvent(w []string) FromFabric {
	from := p.end(w[0])
	multicast := w[1] == "multicast"
	w, as := option(w[2:], "as")
	if w[0] == "arp" {
		ev := fabricARP(from, arpOp(w[1]), w[2], w[4], multicast)
		if as != "" {
			ev.Msg = fabricARP(p.end(as), arpOp(w[1]), w[2], w[4], multicast).Msg
		}
		return ev
	}
	if w[0] == "ip" {
		src, dst := ip(w[1]), ip(w[3])
		return FromFabric{append(newMessage(etherTypeFor(dst)), ipPacket(src, dst)...), from.key(), multicast}
	}
	if w[0] == "query" {
		src := ip(w[2])
		return FromFabric{append(newMessage(etherTypeFor(src)), ipoib.AppendMembershipQuery(nil, src)...), from.key(), multicast}
	}
	if w[0] == "echo" {
		echo := ipoib.Echo{Reply: w[1] == "reply", ID: uint64(transcript.Number(p.tb, w[3]))}
		return FromFabric{echo.Message(56), from.key(), multicast}
	}
	m, link := p.ndArgs(w)
	if link != "" {
		m.options = ipoibLink(linkType(m.typ), p.end(link))
	}
	ev := fabricND(from, m)
	ev.Multicast = multicast
	return ev
}

// ndArgs parses "ns IP > IP target IP link L".
func (p *player) ndArgs(w []string) (m ndMessage, link string) {
	w, target := option(w, "target")
	w, link = option(w, "link")
	types := map[string]uint8{
		"rs": ipoib.NDRouterSolicit, "ra": ipoib.NDRouterAdvert, "ns": ipoib.NDNeighborSolicit,
		"na": ipoib.NDNeighborAdvert, "redirect": ipoib.NDRedirect,
	}
	var to netip.Addr
	if target != "" {
		to = ip(target)
	}
	if types[w[0]] == 0 {
		p.tb.Fatalf("unknown message %q", w)
	}
	return nd(types[w[0]], ip(w[1]), ip(w[3]), to, nil), link
}

func linkType(msgType uint8) uint8 {
	if msgType == ipoib.NDNeighborAdvert || msgType == ipoib.NDRedirect {
		return ipoib.OptionTargetLink
	}
	return ipoib.OptionSourceLink
}

func arpOp(name string) uint16 {
	if name == "reply" {
		return ipoib.ARPReply
	}
	return ipoib.ARPRequest
}

func (p *player) end(name string) endpoint {
	p.tb.Helper()
	e, ok := p.ends[name]
	if !ok {
		p.tb.Fatalf("unknown peer %q", name)
	}
	return e
}

func (p *player) macArg(s string) ipoib.MAC {
	p.tb.Helper()
	switch {
	case s == "own":
		return ownMAC
	case s == "broadcast":
		return ipoib.Broadcast
	case s[0] == '@':
		return p.macOf(p.end(s[1:]))
	}
	var m ipoib.MAC
	if _, err := fmt.Sscanf(s, "%x:%x:%x:%x:%x:%x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5]); err != nil {
		p.tb.Fatalf("MAC %q: %v", s, err)
	}
	return m
}

// option removes "name value" from w.
func option(w []string, name string) (rest []string, value string) {
	i := slices.Index(w, name)
	if i < 0 {
		return w, ""
	}
	return slices.Concat(w[:i], w[i+2:]), w[i+1]
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
