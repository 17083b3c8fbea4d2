package sa

import "ipoibd/hca/mad"

// Reason is why an interface is not a member of a group, or why there is no path. Logs, status and tests use the same
// name.
type Reason uint8

// Reasons.
const (
	ReasonNone Reason = iota
	// The port.
	ReasonNoSM          // the SM LID is 0: no subnet manager has configured the port
	ReasonPortNotActive // the port is down, or in INIT or ARMED
	ReasonPKeyAbsent    // the partition is not in the port's table
	// The SA.
	ReasonNoAnswer    // it does not answer
	ReasonBusy        // it answers that it is busy
	ReasonRedirected  // it refers to another port, which is not supported
	ReasonNoResources // it has no room, such as for another MLID
	ReasonDenied      // it refuses this port
	ReasonBadAnswer   // its answer has an invalid field
	ReasonRefused     // it refuses the request for another reason; see the status
	// The group.
	ReasonNoGroup     // the group does not exist: the partition lacks the flag ipoib at the subnet manager
	ReasonExceedsPort // the MTU or the rate of the group is above that of the port
	ReasonBadGroup    // the MGID is not that of an IPoIB group
	// The path.
	ReasonNoPath // the SA knows no such port, or no path to it in this partition
	// This client.
	ReasonLimit // too many groups, or too many paths are being asked for

	numReason
)

var reasonNames = [numReason]string{
	"none", "no_sm", "port_not_active", "pkey_absent",
	"no_answer", "busy", "redirected", "no_resources", "denied", "bad_answer", "refused",
	"no_group", "exceeds_port", "bad_group", "no_path", "limit",
}

func (r Reason) String() string {
	if r >= numReason {
		return "unknown"
	}
	return reasonNames[r]
}

// reasonOf returns the meaning of a refusal that is the same for every request.
func reasonOf(s mad.Status) Reason {
	switch {
	case s.Redirected():
		return ReasonRedirected
	case s.Code() == mad.StatusNoResources:
		return ReasonNoResources
	case s.Code() == mad.StatusDenied:
		return ReasonDenied
	}
	return ReasonRefused
}

// joinReason returns the meaning of a refused join. SAs use two codes for several causes, which the request tells
// apart: all that a join of the broadcast group can lack is the group itself, or the MTU or the rate of the port; and a
// join as JoinSendOnly cannot create its group.
func joinReason(s mad.Status, broadcast bool, asked mad.JoinState) Reason {
	switch code := s.Code(); {
	case code == mad.StatusInsufficientComponents:
		return ReasonNoGroup
	case code == mad.StatusRequestInvalid && broadcast:
		return ReasonExceedsPort
	case code == mad.StatusRequestInvalid && asked == mad.JoinSendOnly:
		return ReasonNoGroup
	}
	return reasonOf(s)
}

// pathReason returns the meaning of a refused query for a path.
func pathReason(s mad.Status) Reason {
	if code := s.Code(); code == mad.StatusNoRecords || code == mad.StatusInvalidGID {
		return ReasonNoPath
	}
	return reasonOf(s)
}
