package mad

// Mask names fields of an attribute. Each attribute has bits of its own.
type Mask uint64

// Bits of an MCMemberRecord (IBA 15.2.5.17).
const (
	MemberMGID Mask = 1 << iota
	MemberPortGID
	MemberQKey
	MemberMLID
	MemberMTUSelector
	MemberMTU
	MemberClass
	MemberPKey
	MemberRateSelector
	MemberRate
	MemberLifetimeSelector
	MemberLifetime
	MemberSL
	MemberFlowLabel
	MemberHopLimit
	MemberScope
	MemberJoinState
	MemberProxyJoin
)

// Bits of a PathRecord (IBA 15.2.5.16). The service ID has two.
const (
	PathServiceID Mask = 3
	PathDGID      Mask = 1 << (iota + 1)
	PathSGID
	PathDLID
	PathSLID
	PathRaw
	_ // reserved
	PathFlowLabel
	PathHopLimit
	PathClass
	PathReversible
	PathNumbPath
	PathPKey
	PathQoSClass
	PathSL
	PathMTUSelector
	PathMTU
	PathRateSelector
	PathRate
	PathLifetimeSelector
	PathLifetime
	PathPreference
)

// Masks of the requests that Linux's IPoIB sends, which every SA therefore answers.
const (
	// MaskJoinBroadcast joins a group that must exist (drivers/infiniband/ulp/ipoib/ipoib_multicast.c).
	MaskJoinBroadcast = MemberMGID | MemberPortGID | MemberPKey | MemberJoinState
	// MaskJoin joins a group, or creates it with the given parameters.
	MaskJoin = MaskJoinBroadcast | MemberQKey | MemberMTUSelector | MemberMTU | MemberClass |
		MemberRateSelector | MemberRate | MemberSL | MemberFlowLabel | MemberHopLimit
	// MaskLeave removes the named bits of the join state.
	MaskLeave = MemberMGID | MemberPortGID | MemberJoinState
	// MaskPath asks for one path (drivers/infiniband/ulp/ipoib/ipoib_main.c).
	MaskPath = PathDGID | PathSGID | PathClass | PathNumbPath | PathPKey
)
