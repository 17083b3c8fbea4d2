package verbs

import "ipoibd/hca"

// kinds are the kinds of objects to which events refer. Events of shared receive queues and
// of work queues are missing, because this package creates neither
// (ibv_get_async_event.3).
var kinds = map[hca.EventType]hca.ObjectKind{
	hca.EventCQErr:            hca.KindCQ,
	hca.EventQPFatal:          hca.KindQP,
	hca.EventQPReqErr:         hca.KindQP,
	hca.EventQPAccessErr:      hca.KindQP,
	hca.EventCommEst:          hca.KindQP,
	hca.EventSQDrained:        hca.KindQP,
	hca.EventPathMig:          hca.KindQP,
	hca.EventPathMigErr:       hca.KindQP,
	hca.EventQPLastWQEReached: hca.KindQP,
	hca.EventDeviceFatal:      hca.KindDevice,
	hca.EventPortActive:       hca.KindPort,
	hca.EventPortErr:          hca.KindPort,
	hca.EventLIDChange:        hca.KindPort,
	hca.EventPKeyChange:       hca.KindPort,
	hca.EventSMChange:         hca.KindPort,
	hca.EventClientReregister: hca.KindPort,
	hca.EventGIDChange:        hca.KindPort,
}

// asyncEvent returns an event with the object that it refers to. It returns false for an
// event that is not in kinds.
func asyncEvent(number, num, generation uint32) (hca.AsyncEvent, bool) {
	if number >= uint32(hca.NumEventType) {
		return hca.AsyncEvent{}, false
	}
	t := hca.EventType(number)
	kind, ok := kinds[t]
	return hca.AsyncEvent{Type: t, On: hca.ObjectID{Kind: kind, Num: num, Generation: generation}}, ok
}
