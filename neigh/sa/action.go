package sa

import (
	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// Action is an output of [Client.Step]. Actions must be done in the order given. Slices in an action are fresh and
// belong to the receiver.
type Action interface{ action() }

// Send sends a MAD to the SA, without a GRH.
type Send struct {
	TID  uint64 // of the MAD, for SendFailed
	MAD  []byte // mad.Len bytes
	DLID uint16
	SL   uint8
	QPN  hca.QPN
	QKey hca.QKey
}

// Group are the parameters of a group that the port is a member of.
type Group struct {
	MLID    uint16
	QKey    hca.QKey
	PKey    hca.PKey
	MTU     hca.MTU
	Rate    mad.Rate
	SL      uint8
	Routing mad.Routing // for the GRH, which every message to the group has
}

// Joined reports that an interface is a member, and later each change of the parameters. The MLID may change: a queue
// pair must then be detached from the group and attached again.
type Joined struct {
	Owner Owner
	MGID  hca.GID
	Group Group
}

// JoinFailed reports why an interface is not, or no longer, a member. It is repeated when the reason changes.
type JoinFailed struct {
	Owner  Owner
	MGID   hca.GID
	Reason Reason
	Status mad.Status // of the answer, if the SA refused
}

// Left reports that no interface has a membership in the group any longer, and that no request about it is under way.
type Left struct{ MGID hca.GID }

// Path is a way to a port.
type Path struct {
	DLID    uint16 // of the port, or of a router
	SL      uint8
	MTU     hca.MTU
	Rate    mad.Rate
	Routing mad.Routing // a hop limit above 0 needs a GRH: the way leaves the subnet
}

// PathFound is a path, from the cache or from an answer of the SA.
type PathFound struct {
	Key     PathKey
	Path    Path
	Changed bool // it differs from the last PathFound of this key, or is the first
}

// PathFailed reports that there is no path, or that it is not known. If the SA has not answered, a path that was found
// earlier stays in the cache.
type PathFailed struct {
	Key    PathKey
	Reason Reason
	Status mad.Status // of the answer, if the SA refused
}

func (Send) action()       {}
func (Joined) action()     {}
func (JoinFailed) action() {}
func (Left) action()       {}
func (PathFound) action()  {}
func (PathFailed) action() {}
