package iface

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// pathReports decides which reports of narrow paths an interface believes. Anyone can forge a report, so the peer
// is sent echo requests first, as long as the interface would send without it. All but answered is pure.
//
//	the device says          | then
//	wider, or it is a route  | in force at once
//	narrower, by a report    | examined, if there is a peer to ask; else in force at once
//	examined: an answer      | refuted: the device ignores it for a while
//	examined: none, maxTries | in force, and examined again after examineAfter, which doubles up to examineLast
//	times                    |
type pathReports struct {
	inForce hca.PathLimit // limits the MTU; zero: none
	claim   hca.PathLimit // being examined; zero: none
	id      uint64        // of the echo requests about it: a peer that does not get them cannot answer
	size    int           // of them, in bytes
	tries   int
	at      time.Time     // of the next try, or when to examine again what is in force; zero: never
	again   time.Duration // from the next failed examination to the one after
	warned  time.Time     // when a refuted report was last logged as a warning
}

const (
	// maxTries and tryEvery are the echo requests of one examination. Until it ends, packets are lost if the report is
	// true. One round trip takes less than that on any underlay on which an interface is usable.
	maxTries = 3
	tryEvery = 200 * time.Millisecond
	// examineAfter and examineLast bound how long a forged report lasts that was believed, because the echo requests
	// were lost or there was no peer to ask.
	examineAfter = time.Second
	examineLast  = 10 * time.Minute
	// warnEvery bounds the warnings about refuted reports.
	warnEvery = 10 * time.Minute
)

// believed returns a plan as far as it is believed.
func (p *pathReports) believed(plan port.Plan) port.Plan {
	plan.Path = p.inForce
	return plan
}

// judge takes what the device says about its narrowest path. askable says whether an answer could refute it.
func (p *pathReports) judge(now time.Time, path hca.PathLimit, id uint64, askable func() bool) {
	narrower := path.Reported && (!p.inForce.To.IsValid() ||
		path.MaxPayload < p.inForce.MaxPayload || path.Carries < p.inForce.Carries)
	switch {
	case path == p.inForce:
		if p.claim.To.IsValid() && p.claim != p.inForce { // it was withdrawn
			p.rest(now)
		}
	case narrower && p.claim.To == path.To: // the same echo requests refute it
		p.claim = path
	case narrower && askable():
		p.claim, p.id, p.tries, p.at, p.again = path, id, 0, now, examineAfter
	default:
		p.inForce, p.again = path, examineAfter
		p.rest(now)
	}
}

// rest ends an examination, and plans the next one of what is in force.
func (p *pathReports) rest(now time.Time) {
	p.claim, p.tries, p.at = hca.PathLimit{}, 0, time.Time{}
	if p.inForce.Reported {
		p.at = now.Add(p.again)
		p.again = min(2*p.again, examineLast)
	}
}

// next does what is due: it reports whether to send an echo request about claim, or whether the claim is in
// force from now on.
func (p *pathReports) next(now time.Time, id uint64) (ask, changed bool) {
	if !due(&p.at, now) {
		return false, false
	}
	if !p.claim.To.IsValid() {
		p.claim, p.id = p.inForce, id
	}
	if p.tries == maxTries {
		changed = p.claim != p.inForce
		p.inForce = p.claim
		p.rest(now)
		return false, changed
	}
	p.tries++
	p.at = now.Add(tryEvery)
	return true, false
}

// refutes reports whether an answer refutes the claim, whose examination then ends.
func (p *pathReports) refutes(now time.Time, r neigh.EchoReply) (to hca.PathLimit, yes bool) {
	if !p.claim.To.IsValid() || r.ID != p.id || r.Size != p.size || r.GID != hca.GIDFromAddr(p.claim.To) {
		return hca.PathLimit{}, false
	}
	to, p.again = p.claim, examineAfter
	p.rest(now)
	return to, true
}

// trial returns the size of a packet that shows whether a claim is wrong: the MTU in use or, for the claim in
// force, that without it.
func (p *pathReports) trial(plan port.Plan, claim hca.PathLimit, mtu *MTUState) int {
	largest := plan.ReceiveMTU()
	if claim != p.inForce {
		largest = p.believed(plan).MTU()
	}
	return mtu.wanted(largest)
}

// fit adapts the MTU to the plan in use or about to be used, if there is one, as far as that is believed.
func (f *Iface) fit() {
	a := f.fabric.held()
	if a == nil {
		return
	}
	path := a.plan.Path
	f.reports.judge(time.Now(), path, rand.Uint64(), func() bool {
		exceeds := f.reports.trial(a.plan, path, &f.host.mtu)+ipoib.HeaderLen > path.Carries
		return exceeds && len(peersAt(path.To, f.nbrs.table.Peers())) > 0
	})
	f.host.fitMTU(f.reports.believed(a.plan))
}

// examine asks the peer behind a path that is reported as narrow, if that is due.
func (f *Iface) examine(now time.Time) {
	ask, changed := f.reports.next(now, rand.Uint64())
	a, r := f.fabric.att, &f.reports
	if a == nil {
		return // the next plan is judged anyway
	}
	if changed {
		f.fit()
		f.nbrs.announce(f.reports.believed(a.plan))
	}
	if !ask {
		return
	}
	r.size = r.trial(a.plan, r.claim, &f.host.mtu)
	if r.size+ipoib.HeaderLen <= r.claim.Carries { // the operator has lowered the MTU since
		r.rest(now)
		return
	}
	if peers := peersAt(r.claim.To, f.nbrs.table.Peers()); len(peers) > 0 {
		p := peers[0]
		if r.tries > 1 { // an invented peer to which the host sends data must not be the only one that is asked
			p = peers[rand.IntN(len(peers))]
		}
		f.nbrs.step(neigh.Ping{GID: p.GID, QPN: p.QPN, ID: r.id, Size: r.size})
	}
}

// peersAt returns the peers at an address of the underlay, most recently used first: anyone can invent peers there, but
// the host sends data to few of them.
func peersAt(to netip.Addr, peers []neigh.PeerInfo) []neigh.PeerInfo {
	gid := hca.GIDFromAddr(to)
	peers = slices.DeleteFunc(peers, func(p neigh.PeerInfo) bool { return p.GID != gid })
	slices.SortFunc(peers, func(a, b neigh.PeerInfo) int { return b.Sent.Compare(a.Sent) })
	return peers
}

// answered has the device of an attachment, if there is one, ignore a report that an answer refutes.
func (p *pathReports) answered(now time.Time, a *attachment, reply neigh.EchoReply, log *slog.Logger) {
	path, refuted := p.refutes(now, reply)
	if !refuted || a == nil {
		return
	}
	level := slog.LevelDebug
	if p.warned.IsZero() || now.Sub(p.warned) >= warnEvery {
		level, p.warned = slog.LevelWarn, now
	}
	log.Log(context.Background(), level,
		"ignoring a router's report of a narrow path, which may be forged: a longer packet has passed",
		"peer", path.To, "path_mtu", path.MTU, "size", reply.Size)
	hca.RefutePath(a.session, path.To, reply.Size+ipoib.HeaderLen)
}
