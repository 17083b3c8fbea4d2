package sa

import (
	"encoding/binary"
	"slices"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// Layout of an IPoIB MGID (RFC 4391 section 4): signature in bytes 2 and 3, P_Key in bytes 4 and 5.
const (
	mgidSignature = 2
	mgidPKey      = 4
	mgidID        = 6

	signatureIPv4 = 0x401b
	signatureIPv6 = 0x601b
)

// normalMGID sets the bit of full membership in the P_Key of an MGID, also for limited members (RFC 4391 section 4). It
// returns false if g is not the MGID of an IPoIB group.
func normalMGID(g hca.GID) (hca.GID, bool) {
	signature := binary.BigEndian.Uint16(g[mgidSignature:])
	binary.BigEndian.PutUint16(g[mgidPKey:], uint16(pkeyOf(g)))
	return g, g[0] == 0xff && (signature == signatureIPv4 || signature == signatureIPv6)
}

// pkeyOf returns the partition of a group, with the bit of full membership.
func pkeyOf(g hca.GID) hca.PKey {
	return hca.PKey(binary.BigEndian.Uint16(g[mgidPKey:])) | hca.PKeyMembership
}

// broadcastOf returns the broadcast group of the partition and the scope of a group.
func broadcastOf(g hca.GID) hca.GID {
	binary.BigEndian.PutUint16(g[mgidSignature:], signatureIPv4)
	clear(g[mgidID:])
	copy(g[12:], []byte{0xff, 0xff, 0xff, 0xff})
	return g
}

// groupState is the state of a membership.
//
//	from            | to      | cause                              | action
//	(new)           | waiting | Join                               |
//	waiting         | joining | all that the join needs is there   | Set
//	joining         | joined  | the answer                         | Joined; if broadcast: others may join
//	joining         | joining | refused, or no answer              | JoinFailed if the reason is new; Set later
//	joined          | joined  | another Set: the answer            | Joined if changed, and to new owners
//	joined          | joining | another Set: refused               | JoinFailed; Set later
//	joining, joined | waiting | the P_Key is absent                | JoinFailed
//	joining         | waiting | the broadcast group is not joined  |
//	joining, joined | leaving | the last owner left                | Delete
//	leaving         | waiting | Join, and no Delete is outstanding |
//	leaving         | (gone)  | the answer, also a refusal         | Left
//	any             | (gone)  | the last owner left, and there is  | Left
//	                |         | nothing to delete, or must not be  |
//	any             | waiting | the port is unusable               | JoinFailed, or Left without an owner
//
// While a request is sent, nothing about the membership is decided: the SA must see Set and Delete in the order of the
// decisions. [groups.settle] decides at its end, after the answer or after its slot.
type groupState uint8

const (
	groupWaiting groupState = iota
	groupJoining
	groupJoined
	groupLeaving
	numGroupState
)

var groupStateNames = [numGroupState]string{"waiting", "joining", "joined", "leaving"}

func (s groupState) String() string { return groupStateNames[s] }

// owner is an interface that wants the group.
type owner struct {
	id       Owner
	sendOnly bool
	told     bool // Joined was emitted for the current parameters
}

// group is the membership of the port in a group.
type group struct {
	of     *groups
	mgid   hca.GID
	owners []owner // in the order of their joins
	state  groupState
	req    request
	asked  mad.JoinState // of the latest Set
	held   mad.JoinState // what the SA may have stored
	group  Group         // of the latest answer
	again  bool          // an event arrived while a Set was sent
	follow bool          // the Set is repeated once the one of the broadcast group is answered
	pace   pace
	why    failure
}

// failure is what JoinFailed last reported; the zero value is no failure.
type failure struct {
	reason   Reason
	status   mad.Status
	refusals int // in a row
}

func (g *group) isBroadcast() bool { return g.mgid == broadcastOf(g.mgid) }

// want returns the join state that the owners need.
func (g *group) want() mad.JoinState {
	if slices.ContainsFunc(g.owners, func(o owner) bool { return !o.sendOnly }) {
		return mad.JoinFull
	}
	return g.of.service.sendOnly()
}

// lacks reports whether the owners need more than a join state, in which full membership includes all others.
func (g *group) lacks(state mad.JoinState) bool {
	return state&mad.JoinFull == 0 && g.want()&^state != 0
}

// serves reports whether what the SA has stored is enough for an owner.
func (g *group) serves(o owner) bool { return o.sendOnly || g.held&mad.JoinFull != 0 }

func (g *group) urgent() bool { return true }

// put writes a Delete in leaving, else a Set.
func (g *group) put(data []byte) (mad.Method, mad.Attribute, mad.Mask) {
	rec := mad.MCMember{MGID: g.mgid, PortGID: g.of.port.view.GID}
	if g.state == groupLeaving {
		rec.JoinState = g.held
		rec.Put(data)
		return mad.MethodDelete, mad.AttrMCMemberRecord, mad.MaskLeave
	}
	if g.req.tries == 0 || g.pace.urged {
		g.pace.set(g.of.step.now)
	}
	if g.req.tries == 0 {
		g.asked = g.want()
	}
	g.held |= g.asked
	rec.PKey, rec.JoinState = pkeyOf(g.mgid), g.asked
	if g.isBroadcast() {
		rec.Put(data)
		return mad.MethodSet, mad.AttrMCMemberRecord, mad.MaskJoinBroadcast
	}
	params := g.group // if the broadcast group is not wanted any longer
	if b := g.of.byMGID[broadcastOf(g.mgid)]; b != nil && b.state == groupJoined {
		params = b.group
	}
	rec.QKey, rec.SL, rec.Routing = params.QKey, params.SL, params.Routing
	rec.MTU = mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: mad.MTUCodeOf(params.MTU)}
	rec.Rate = mad.Selected[mad.Rate]{By: mad.SelectExactly, Value: params.Rate}
	rec.Put(data)
	return mad.MethodSet, mad.AttrMCMemberRecord, mad.MaskJoin
}

func (g *group) fits(data []byte) bool {
	var rec mad.MCMember
	return rec.Parse(data) == nil && rec.MGID == g.mgid
}

func (g *group) answered(s mad.Status, data []byte) {
	var rec mad.MCMember
	err := rec.Parse(data)
	switch {
	case g.req.method == mad.MethodDelete:
		g.held = 0
	case s != mad.StatusOK:
		g.refused(joinReason(s, g.isBroadcast(), g.asked), s)
	case err != nil || rec.Check() != nil:
		g.refused(ReasonBadAnswer, s)
	default:
		g.becomeJoined(rec)
	}
	g.of.settle(g, 0)
}

// refused ends the membership, if there was one, and tries again later. The SA may still have stored it, or what an
// earlier Set asked for, so held stays.
func (g *group) refused(why Reason, s mad.Status) {
	g.state, g.again = groupJoining, false
	g.of.report(g, why, s)
	pause := min(refusedPause<<min(g.why.refusals, 8), maxPause)
	g.why.refusals++
	g.of.requests.start(&g.req, g.of.step.now.Add(g.of.step.jitter(pause)))
}

func (g *group) becomeJoined(rec mad.MCMember) {
	now := Group{
		MLID: rec.MLID, QKey: rec.QKey, PKey: rec.PKey | hca.PKeyMembership, MTU: rec.MTU.Value.MTU(), Rate: rec.Rate.Value,
		SL: rec.SL, Routing: rec.Routing,
	}
	if stored := g.held & rec.JoinState; stored != 0 {
		g.held = stored
	}
	changed := g.state != groupJoined || g.group != now
	g.state, g.group, g.why = groupJoined, now, failure{}
	for i := range g.owners {
		o := &g.owners[i]
		o.told = o.told && !changed
		if !o.told && g.serves(*o) {
			o.told = true
			g.of.step.emit(Joined{o.id, g.mgid, now})
		}
	}
	if g.again {
		g.again = false
		g.of.repeat(g, g.of.step.upTo(rejoinSpread))
	}
	interval := groupInterval
	if g.isBroadcast() {
		interval = broadcastInterval
	}
	g.of.requests.start(&g.req, g.of.step.now.Add(g.of.step.jitter(interval)))
	if g.isBroadcast() {
		g.of.lead(g, changed)
	}
}

// unanswered keeps a membership that is only being renewed. It reports a join that has had its time.
func (g *group) unanswered(why Reason) {
	if g.again {
		g.again = false
		g.of.repeat(g, 0)
	}
	if g.state == groupJoining && g.of.requests.overdue(&g.req) {
		g.of.report(g, why, 0)
	}
	g.of.settle(g, 0)
}
