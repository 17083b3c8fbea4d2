package sa

import (
	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// Event is an input of [Client.Step]. The caller keeps ownership of slices in an event; the client copies the data
// that it needs.
type Event interface{ event() }

// Port is the current view of the port. The client compares it with the previous one: a new SM LID is an SM change, a
// new LID a change of the LID, and with a new GID all memberships begin again.
type Port struct {
	State         hca.PortState
	GID           hca.GID // at index 0, the source of all requests
	LID           uint16
	SMLID         uint16       // 0: there is no subnet manager
	SMSL          uint8        // service level for messages to it
	SubnetTimeout mad.TimeCode // how long a packet may take through the subnet
	PKeys         []hca.PKey   // the port's table; empty: not known, so no P_Key is looked up
}

// PortDown reports that the port was not active, even if the next view is equal to the last one. The port is down until
// that view.
type PortDown struct{}

// Reregister reports CLIENT_REREGISTER: the subnet manager asks for all memberships again. It may precede the view in
// which the port is active.
type Reregister struct{}

// SMChange reports SM_CHANGE: another subnet manager serves the port, or the same one began again.
type SMChange struct{}

// LIDChange reports LID_CHANGE.
type LIDChange struct{}

// KernelGroups reports the groups that the kernel's own IPoIB interfaces on this port want, without their broadcast
// groups, when they have changed. The kernel joins and leaves them by itself, in the name of the same port.
type KernelGroups struct{ MGIDs []hca.GID }

// Received is a MAD that arrived on the SA queue pair.
type Received struct {
	MAD    []byte // without GRH
	SLID   uint16 // of the completion
	SrcQPN hca.QPN
}

// SendFailed reports that the MAD of a [Send] was not sent. The request goes on as if the MAD had been lost.
type SendFailed struct{ TID uint64 }

// Owner is an interface of this port. Its number is chosen by the caller.
type Owner uint32

// Join makes an interface a member of an IPoIB group. It is answered by [Joined] or [JoinFailed], and after a failure
// the client tries again until [Leave]. The parameters of a group other than the broadcast group are copied from the
// broadcast group of the same partition and scope; the join waits for that of the broadcast group.
type Join struct {
	Owner    Owner
	MGID     hca.GID // the bit of full membership in its P_Key is set, if it is not
	SendOnly bool    // the interface only sends to the group
}

// Leave ends the membership of an interface.
type Leave struct {
	Owner Owner
	MGID  hca.GID
}

// PathKey is what a path is asked for by.
type PathKey struct {
	DGID   hca.GID
	PKey   hca.PKey
	Class  uint8 // traffic class
	SL     uint8 // with WithSL
	WithSL bool  // only a path with this SL will do; Linux's IPoIB leaves the SL to the SA
}

// WantPath asks for a path. It is answered by [PathFound], at once from the cache if possible, or by [PathFailed].
type WantPath struct{ Key PathKey }

// RefreshPath is WantPath for a path that may have changed, because packets arrive from another LID or the peer is
// silent. The client asks for it again, at most once in refreshPause, and answers only then.
type RefreshPath struct{ Key PathKey }

// Tick has no effect but the passing of time; see [Client.NextDeadline].
type Tick struct{}

func (Port) event()         {}
func (PortDown) event()     {}
func (Reregister) event()   {}
func (SMChange) event()     {}
func (LIDChange) event()    {}
func (KernelGroups) event() {}
func (Received) event()     {}
func (SendFailed) event()   {}
func (Join) event()         {}
func (Leave) event()        {}
func (WantPath) event()     {}
func (RefreshPath) event()  {}
func (Tick) event()         {}
