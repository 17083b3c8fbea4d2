package sa

import (
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// groups are the memberships of the port, counted over its interfaces.
type groups struct {
	step     *step
	port     *port
	requests *requests
	service  *service

	list   []*group // in the order of their first join
	byMGID map[hca.GID]*group
	kernel map[hca.GID]bool // those that the kernel's interfaces want
}

func (gs *groups) init(s *step, p *port, q *requests, sv *service) {
	gs.step, gs.port, gs.requests, gs.service, gs.byMGID = s, p, q, sv, make(map[hca.GID]*group)
}

// join adds an owner. One that has joined already may change from send-only to full membership or back.
func (gs *groups) join(ev Join) {
	mgid, ok := normalMGID(ev.MGID)
	if !ok {
		gs.step.emit(JoinFailed{Owner: ev.Owner, MGID: ev.MGID, Reason: ReasonBadGroup})
		return
	}
	g := gs.byMGID[mgid]
	if g == nil {
		if len(gs.list) >= maxGroups && mgid != broadcastOf(mgid) { // the configuration bounds the broadcast groups
			gs.step.emit(JoinFailed{Owner: ev.Owner, MGID: mgid, Reason: ReasonLimit})
			return
		}
		g = &group{of: gs, mgid: mgid}
		g.req.subject = g
		gs.byMGID[mgid] = g
		gs.list = append(gs.list, g)
	}
	i := slices.IndexFunc(g.owners, func(o owner) bool { return o.id == ev.Owner })
	if i < 0 {
		i = len(g.owners)
		g.owners = append(g.owners, owner{id: ev.Owner})
	}
	o := &g.owners[i]
	o.sendOnly = ev.SendOnly
	o.told = g.state == groupJoined && g.serves(*o)
	switch {
	case o.told:
		gs.step.emit(Joined{o.id, mgid, g.group})
	case g.why.reason != ReasonNone:
		gs.step.emit(JoinFailed{o.id, mgid, g.why.reason, g.why.status})
	}
	gs.settle(g, 0)
}

// leave removes an owner.
func (gs *groups) leave(ev Leave) {
	mgid, _ := normalMGID(ev.MGID)
	g := gs.byMGID[mgid]
	if g == nil {
		return
	}
	g.owners = slices.DeleteFunc(g.owners, func(o owner) bool { return o.id == ev.Owner })
	gs.settle(g, 0)
}

// settle decides what to do about a membership, unless a request about it is outstanding. A join that begins waits a
// random time up to spread.
func (gs *groups) settle(g *group, spread time.Duration) {
	if len(g.owners) == 0 {
		gs.settleLeft(g)
		return
	}
	if g.req.state == requestSent {
		return
	}
	if g.state == groupLeaving {
		gs.requests.cancel(&g.req)
		g.state = groupWaiting
	}
	why, ready := gs.missing(g)
	switch {
	case !ready:
		gs.requests.cancel(&g.req)
		g.state = groupWaiting
		if why == ReasonNone {
			g.why = failure{}
		} else {
			gs.report(g, why, 0)
		}
	case g.state == groupWaiting:
		g.state, g.why, g.asked = groupJoining, failure{}, g.want()
		gs.requests.start(&g.req, gs.step.now.Add(gs.step.upTo(spread)))
	case g.req.tries > 0 && g.want() != g.asked: // another question, whose answer must not be taken for that of the former
		gs.requests.cancel(&g.req)
		gs.requests.start(&g.req, gs.step.now)
	case g.state == groupJoined && g.lacks(g.held), g.state == groupJoining && g.lacks(g.asked):
		gs.requests.start(&g.req, gs.step.now)
	}
}

// missing reports whether a join has all that it needs, and if it does not, why an operator might want to know.
func (gs *groups) missing(g *group) (why Reason, ready bool) {
	if why := gs.port.trouble(); why != ReasonNone {
		return why, false
	}
	if !gs.port.has(pkeyOf(g.mgid)) {
		return ReasonPKeyAbsent, false
	}
	if g.isBroadcast() || g.state == groupJoined {
		return ReasonNone, true
	}
	b := gs.byMGID[broadcastOf(g.mgid)]
	return ReasonNone, b != nil && b.state == groupJoined && (g.want() == mad.JoinFull || gs.service.settled)
}

// settleLeft ends a membership without owners. The subnet manager drops it together with the port, so it need not be
// deleted, and must not be if the kernel may have the same one: always for the broadcast group, because the kernel's
// interface may be in another network namespace.
func (gs *groups) settleLeft(g *group) {
	deletable := !g.isBroadcast() && !gs.kernel[g.mgid] && gs.port.usable()
	switch {
	case !deletable || g.held == 0:
		gs.remove(g)
	case g.req.state == requestSent:
	case g.state != groupLeaving:
		gs.requests.cancel(&g.req)
		g.state, g.again = groupLeaving, false
		gs.requests.start(&g.req, gs.step.now)
	}
}

func (gs *groups) remove(g *group) {
	gs.requests.cancel(&g.req)
	delete(gs.byMGID, g.mgid)
	gs.list = slices.DeleteFunc(gs.list, func(other *group) bool { return other == g })
	gs.step.emit(Left{g.mgid})
	if g.isBroadcast() {
		gs.lead(g, false)
	}
}

// report emits JoinFailed to all owners if the reason is new.
func (gs *groups) report(g *group, why Reason, s mad.Status) {
	if g.why.reason == why && g.why.status == s {
		return
	}
	g.why.reason, g.why.status = why, s
	for i := range g.owners {
		g.owners[i].told = false
		gs.step.emit(JoinFailed{g.owners[i].id, g.mgid, why, s})
	}
}

// all returns the groups as they are now, so that a loop may remove some.
func (gs *groups) all() []*group { return slices.Clone(gs.list) }

func (gs *groups) settleAll(spread time.Duration) {
	for _, g := range gs.all() {
		gs.settle(g, spread)
	}
}

// reset ends all memberships, because the port is not usable.
func (gs *groups) reset() {
	for _, g := range gs.all() {
		gs.requests.cancel(&g.req)
		g.state, g.held, g.again, g.follow = groupWaiting, 0, false, false
		gs.settle(g, 0)
	}
}

// again sets all memberships again, without leaving them: the broadcast groups after some time and a random one up to
// spread, and the others as soon as the parameters of theirs are known.
func (gs *groups) again(after, spread time.Duration) {
	for _, g := range gs.list {
		if b := gs.byMGID[broadcastOf(g.mgid)]; b == g || b == nil {
			gs.repeat(g, after+gs.step.upTo(spread))
		} else {
			g.follow = true
		}
	}
}

// repeat sends the Set of a membership once more, after some time. One that was sent is repeated after its answer,
// since the SA may have seen it before it forgot. One without an answer is repeated when it would have been without the
// event, at the latest.
func (gs *groups) repeat(g *group, after time.Duration) {
	if g.state != groupJoined && g.state != groupJoining {
		return
	}
	if g.req.state == requestSent {
		g.again = true
		return
	}
	at := g.pace.due(gs.step.now, after)
	if g.req.tries > 0 {
		gs.requests.renew(&g.req, at)
		return
	}
	gs.requests.start(&g.req, at)
}

// lead begins the joins that have waited for the broadcast group b, and sets others again that follow it, or all if its
// parameters changed. Those that follow need not wait either if b is no longer wanted.
func (gs *groups) lead(b *group, changed bool) {
	for _, g := range gs.all() {
		if g == b || broadcastOf(g.mgid) != b.mgid {
			continue
		}
		if changed || g.follow {
			g.follow = false
			gs.repeat(g, 0)
		}
		gs.settle(g, 0)
	}
}

// kernelChanged replaces the groups that the kernel's interfaces want. If one has left a group, it may have ended
// memberships, also in the broadcast group.
func (gs *groups) kernelChanged(mgids []hca.GID) {
	before := gs.kernel
	gs.kernel = make(map[hca.GID]bool, len(mgids))
	for _, mgid := range mgids {
		gs.kernel[mgid] = true
		delete(before, mgid)
	}
	for _, g := range gs.all() {
		gs.settle(g, 0)
	}
	if len(before) > 0 {
		gs.again(kernelDelay, 0)
	}
}
