package qprecovery

import (
	"ipoibd/hca"
)

// Class is what a completion status, an asynchronous event or the error of a
// verb means to recovery. Each has exactly one (R5).
type Class uint8

// Classes.
const (
	// ClassSuccess: nothing is wrong; also "already in that state".
	ClassSuccess Class = iota
	// ClassFlushed: the consequence of an error that came before. It returns a
	// buffer and is no cause, only a reason to look at the QP.
	ClassFlushed
	// ClassRequestError: a work request was wrong. On UD that is always local.
	ClassRequestError
	// ClassQPError: the QP reports an error that no work request explains.
	ClassQPError
	// ClassCQError: the CQ is void, and so are its QPs.
	ClassCQError
	// ClassDeviceError: the device reports a fatal error.
	ClassDeviceError
	// ClassDeviceGone: the device is not there any more.
	ClassDeviceGone
	// ClassStuck: the device does not answer a verb.
	ClassStuck
	// ClassQueueFull: post again after the next completion.
	ClassQueueFull
	// ClassSilentPeer: a peer does not answer or cannot be reached.
	ClassSilentPeer
	// ClassTransient: the same call again may succeed.
	ClassTransient
	// ClassNoResource: host or device are out of something.
	ClassNoResource
	// ClassRefused: an argument, a state or a permission was wrong.
	ClassRefused
	// ClassPort: the port or one of its tables changed; the port's affair.
	ClassPort
	// ClassIgnored: about objects that a UD interface does not have.
	ClassIgnored
	// NumClass bounds the enumeration for total tables.
	NumClass
)

// meaning says where an interface's ladder takes a class up, and the reason it
// has there. A class without a cause moves nothing by itself; as the result of a
// rung's verb every class but ClassSuccess is a failure. None that a peer can
// bring about has the device as its cause (R7).
type meaning struct {
	name   string
	cause  cause
	reason Reason
}

var classes = [NumClass]meaning{
	ClassSuccess:      {"success", causeNone, ReasonNone},
	ClassFlushed:      {"flushed", causeSuspect, ReasonFlushWithoutCause},
	ClassRequestError: {"request_error", causeSuspect, ReasonRequestError},
	ClassQPError:      {"qp_error", causeSuspect, ReasonQPError},
	ClassCQError:      {"cq_error", causeCQ, ReasonCQError},
	ClassDeviceError:  {"device_error", causeDevice, ReasonDeviceError},
	ClassDeviceGone:   {"device_gone", causeDevice, ReasonDeviceGone},
	ClassStuck:        {"stuck", causeDevice, ReasonVerbStuck},
	ClassQueueFull:    {"queue_full", causeNone, ReasonNone},
	ClassSilentPeer:   {"silent_peer", causeNone, ReasonNone},
	ClassTransient:    {"transient", causeNone, ReasonNone},
	ClassNoResource:   {"no_resource", causeNone, ReasonNone},
	ClassRefused:      {"refused", causeNone, ReasonNone},
	ClassPort:         {"port", causeNone, ReasonNone},
	ClassIgnored:      {"ignored", causeNone, ReasonNone},
}

// OfDevice reports whether a class accuses the device.
func (c Class) OfDevice() bool { return c < NumClass && classes[c].cause == causeDevice }

func (c Class) String() string {
	if c >= NumClass {
		return "unknown"
	}
	return classes[c].name
}

// completions classifies enum ibv_wc_status (infiniband/verbs.h, IBA 11.6.2). The
// side does not matter on UD: a send and a receive fail for local reasons
// alike, a receive also because the buffer was too short. What only RC, RD, XRC
// or tag matching can give (remote, RNR, EEC, TM) says on UD that the QP is not
// what it should be. No status accuses the device: that takes an event.
var completions = [hca.NumWCStatus]Class{
	hca.WCSuccess:          ClassSuccess,
	hca.WCLocLenErr:        ClassRequestError,
	hca.WCLocQPOpErr:       ClassRequestError,
	hca.WCLocEECOpErr:      ClassQPError,
	hca.WCLocProtErr:       ClassRequestError,
	hca.WCWRFlushErr:       ClassFlushed,
	hca.WCMWBindErr:        ClassRequestError,
	hca.WCBadRespErr:       ClassQPError,
	hca.WCLocAccessErr:     ClassRequestError,
	hca.WCRemInvReqErr:     ClassQPError,
	hca.WCRemAccessErr:     ClassQPError,
	hca.WCRemOpErr:         ClassQPError,
	hca.WCRetryExcErr:      ClassQPError,
	hca.WCRNRRetryExcErr:   ClassQPError,
	hca.WCLocRDDViolErr:    ClassQPError,
	hca.WCRemInvRDReqErr:   ClassQPError,
	hca.WCRemAbortErr:      ClassQPError,
	hca.WCInvEECNErr:       ClassQPError,
	hca.WCInvEECStateErr:   ClassQPError,
	hca.WCFatalErr:         ClassQPError,
	hca.WCRespTimeoutErr:   ClassQPError,
	hca.WCGeneralErr:       ClassQPError,
	hca.WCTMErr:            ClassQPError,
	hca.WCTMRndvIncomplete: ClassQPError,
}

// OfCompletion classifies a completion status, one out of range as ClassQPError.
func OfCompletion(s hca.WCStatus) Class {
	if s >= hca.NumWCStatus {
		return ClassQPError
	}
	return completions[s]
}

// asyncs classifies enum ibv_event_type (infiniband/verbs.h, IBA 11.6.3).
var asyncs = [hca.NumEventType]Class{
	hca.EventCQErr:            ClassCQError,
	hca.EventQPFatal:          ClassQPError,
	hca.EventQPReqErr:         ClassQPError,
	hca.EventQPAccessErr:      ClassQPError,
	hca.EventCommEst:          ClassIgnored,
	hca.EventSQDrained:        ClassIgnored,
	hca.EventPathMig:          ClassIgnored,
	hca.EventPathMigErr:       ClassIgnored,
	hca.EventDeviceFatal:      ClassDeviceError,
	hca.EventPortActive:       ClassPort,
	hca.EventPortErr:          ClassPort,
	hca.EventLIDChange:        ClassPort,
	hca.EventPKeyChange:       ClassPort,
	hca.EventSMChange:         ClassPort,
	hca.EventSRQErr:           ClassIgnored,
	hca.EventSRQLimitReached:  ClassIgnored,
	hca.EventQPLastWQEReached: ClassIgnored,
	hca.EventClientReregister: ClassPort,
	hca.EventGIDChange:        ClassPort,
	hca.EventWQFatal:          ClassIgnored,
}

// OfEvent classifies an asynchronous event, one out of range as ClassIgnored.
func OfEvent(t hca.EventType) Class {
	if t >= hca.NumEventType {
		return ClassIgnored
	}
	return asyncs[t]
}
