package qprecovery

import (
	"ipoibd/hca"
)

// Class is the meaning of a completion status, an asynchronous event or a
// verb's error for recovery. Each of them has exactly one class (R5).
type Class uint8

// Classes.
const (
	// ClassSuccess: no error; also "already in that state".
	ClassSuccess Class = iota
	// ClassFlushed: the consequence of an earlier error. It returns a buffer;
	// it is not an error itself, only a reason to query the QP.
	ClassFlushed
	// ClassRequestError: a work request was invalid. On UD the cause is always
	// local.
	ClassRequestError
	// ClassQPError: the QP reports an error that is not due to a work request.
	ClassQPError
	// ClassCQError: the CQ is unusable, and so are its QPs.
	ClassCQError
	// ClassDeviceError: the device reports a fatal error.
	ClassDeviceError
	// ClassDeviceGone: the device no longer exists.
	ClassDeviceGone
	// ClassStuck: the device does not answer a verb.
	ClassStuck
	// ClassQueueFull: post again after the next completion.
	ClassQueueFull
	// ClassSilentPeer: a peer does not answer or cannot be reached.
	ClassSilentPeer
	// ClassTransient: the same call may succeed if repeated.
	ClassTransient
	// ClassNoResource: the host or the device has run out of a resource.
	ClassNoResource
	// ClassRefused: invalid argument, wrong state or missing permission.
	ClassRefused
	// ClassPort: the port or one of its tables has changed.
	ClassPort
	// ClassIgnored: about objects that a UD interface does not use.
	ClassIgnored
	// NumClass is the number of classes.
	NumClass
)

// meaning is the cause that a class has in an interface's ladder, with its
// reason. A class without a cause has no effect by itself, but as the result of
// a rung's verb every class except ClassSuccess is a failure. No class that a
// peer can provoke has causeDevice (R7).
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

// OfDevice reports whether a class attributes the error to the device.
func (c Class) OfDevice() bool { return c < NumClass && classes[c].cause == causeDevice }

// NeedsReset reports whether a device whose opening fails with this class is present and does not
// work, so that a reset may help.
func (c Class) NeedsReset() bool { return c.OfDevice() && c != ClassDeviceGone }

func (c Class) String() string {
	if c >= NumClass {
		return "unknown"
	}
	return classes[c].name
}

// completions classifies enum ibv_wc_status (infiniband/verbs.h, IBA 11.6.2). It
// makes no distinction between sends and receives: on UD both fail for local
// reasons only, such as a receive buffer that is too short. A status that only
// RC, RD, XRC or tag matching can produce (remote, RNR, EEC, TM) means on UD that
// the QP is broken. No status is an error of the device: only an event reports one.
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

// OfCompletion classifies a completion status. One out of range is ClassQPError.
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

// OfEvent classifies an asynchronous event. One out of range is ClassIgnored.
func OfEvent(t hca.EventType) Class {
	if t >= hca.NumEventType {
		return ClassIgnored
	}
	return asyncs[t]
}
