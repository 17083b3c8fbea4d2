package qprecovery

import (
	"errors"

	"ipoibd/hca"
)

// verbSet is a set of verbs, one bit each.
type verbSet uint32

func verbs(vs ...Verb) (set verbSet) {
	for _, v := range vs {
		set |= 1 << v
	}
	return set
}

func (s verbSet) has(v Verb) bool { return s>>v&1 != 0 }

const everyVerb verbSet = 1<<NumVerb - 1

var (
	creatingAH = verbs(VerbCreateAH)
	posting    = verbs(VerbPostSend, VerbPostRecv)
	detaching  = verbs(VerbDetachMcast)
	destroying = verbs(VerbDestroyAH, VerbDestroyQP, VerbDestroyCQ, VerbDeregMR, VerbDeallocPD, VerbCloseDevice)
)

// errorRules classify the errors of verbs, which wrap the sentinels of the hca contract. The
// first rule that matches decides. Each sentinel has a rule for every verb, so every pair of
// a verb and a sentinel has exactly one class (R5). A backend maps each errno of a verb to
// one sentinel (hca/verbs), so the same is true of every pair of a verb and an errno.
var errorRules = []struct {
	err   error
	verbs verbSet
	class Class
}{
	{hca.ErrCQ, everyVerb, ClassCQError},
	// create_ah resolves the neighbour (rxe: for about 1 s), which may be slow or silent: even
	// if the call does not return in time, that does not mean that the device hangs (R7, R8).
	{hca.ErrStuck, creatingAH, ClassSilentPeer},
	{hca.ErrStuck, everyVerb, ClassStuck},
	// rxe refuses a post in RESET, although nothing moved the QP there: query it.
	{hca.ErrInvalid, posting, ClassQPError},
	{hca.ErrInvalid, detaching, ClassSuccess}, // it was not attached
	{hca.ErrInvalid, everyVerb, ClassRefused},
	{hca.ErrQueueFull, posting, ClassQueueFull},
	{hca.ErrQueueFull, everyVerb, ClassNoResource},
	{hca.ErrNoMemory, posting, ClassQueueFull},
	{hca.ErrNoMemory, everyVerb, ClassNoResource},
	{hca.ErrBusy, everyVerb, ClassRefused},
	{hca.ErrTimeout, creatingAH, ClassSilentPeer},
	// A driver returns ETIMEDOUT if the firmware does not answer a command.
	{hca.ErrTimeout, everyVerb, ClassStuck},
	{hca.ErrIO, everyVerb, ClassDeviceError},
	{hca.ErrClosed, destroying, ClassSuccess},
	{hca.ErrClosed, everyVerb, ClassRefused},
	{hca.ErrNoDevice, everyVerb, ClassDeviceGone},
	{hca.ErrRange, everyVerb, ClassRefused},
}

// OfError classifies a verb's error; nil is success. An error that wraps no
// sentinel of hca is ClassRefused.
func OfError(v Verb, err error) Class {
	if err == nil {
		return ClassSuccess
	}
	for _, r := range errorRules {
		if r.verbs.has(v) && errors.Is(err, r.err) {
			return r.class
		}
	}
	return ClassRefused
}

// OfVerbError classifies an error by the verb of the [hca.VerbError] in it, or
// by the verb otherwise if there is none.
func OfVerbError(otherwise Verb, err error) Class {
	var named *hca.VerbError
	if errors.As(err, &named) {
		if v, ok := verbNamed(named.Verb); ok {
			return OfError(v, err)
		}
	}
	return OfError(otherwise, err)
}

// AlreadyThere corrects the class of a refused modify_qp: some firmware refuses
// RESET -> RESET and RESET -> ERR, but if the QP is already in the requested
// state, the verb counts as successful.
func AlreadyThere(c Class, asked, found hca.QPState) Class {
	if c == ClassRefused && asked == found {
		return ClassSuccess
	}
	return c
}
