package qprecovery

import (
	"errors"

	"ipoibd/hca"
)

// Errno is an errno of Linux (asm-generic/errno.h), 0 for success, or
// [ErrnoStuck].
type Errno uint16

// Bounds of the values, and the value that is not an errno.
const (
	ErrnoStuck Errno = 134 // the verb did not return in time; follows EHWPOISON, the last errno
	NumErrno   Errno = 135
)

// The errnos that a rule names.
const (
	eNOENT        Errno = 2
	eINTR         Errno = 4
	eIO           Errno = 5
	eNXIO         Errno = 6
	eBADF         Errno = 9
	eAGAIN        Errno = 11
	eNOMEM        Errno = 12
	eBUSY         Errno = 16
	eEXIST        Errno = 17
	eNODEV        Errno = 19
	eINVAL        Errno = 22
	eNFILE        Errno = 23
	eMFILE        Errno = 24
	eNOSPC        Errno = 28
	eRANGE        Errno = 34
	eNODATA       Errno = 61
	eADDRINUSE    Errno = 98
	eADDRNOTAVAIL Errno = 99
	eNETDOWN      Errno = 100
	eNETUNREACH   Errno = 101
	eNOBUFS       Errno = 105
	eSHUTDOWN     Errno = 108
	eTIMEDOUT     Errno = 110
	eHOSTDOWN     Errno = 112
	eHOSTUNREACH  Errno = 113
	eALREADY      Errno = 114
	eDQUOT        Errno = 122
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
	modifying  = verbs(VerbModifyReset, VerbModifyInit, VerbModifyRTR, VerbModifyRTS, VerbModifySQD, VerbModifySQE, VerbModifyErr)
	posting    = verbs(VerbPostSend, VerbPostRecv)
	attaching  = verbs(VerbAttachMcast)
	detaching  = verbs(VerbDetachMcast)
	destroying = verbs(VerbDestroyAH, VerbDestroyQP, VerbDestroyCQ, VerbDeregMR, VerbDeallocPD, VerbCloseDevice)
)

// errnoRule assigns a class to some errnos of some verbs.
type errnoRule struct {
	verbs  verbSet
	class  Class
	errnos []Errno
}

// errnoRules are applied in order; a later rule overrides an earlier one. A
// pair of verb and errno without a rule is ClassRefused, so that every pair has
// a class (R5).
var errnoRules = []errnoRule{
	{everyVerb, ClassSuccess, []Errno{0}},
	{everyVerb, ClassTransient, []Errno{eINTR, eAGAIN}},
	{everyVerb, ClassNoResource, []Errno{eNOMEM, eNFILE, eMFILE, eNOSPC, eNOBUFS, eDQUOT}},
	{everyVerb, ClassDeviceError, []Errno{eIO}},
	{everyVerb, ClassDeviceGone, []Errno{eNXIO, eNODEV, eSHUTDOWN}},
	// A driver returns ETIMEDOUT if the firmware does not answer a command.
	{everyVerb, ClassStuck, []Errno{eTIMEDOUT, ErrnoStuck}},
	// The netdev is down or being removed, or a GID was removed from its table.
	{everyVerb, ClassPort, []Errno{eNODATA, eADDRNOTAVAIL, eNETDOWN, eNETUNREACH}},
	// The device does not exist yet, for which opening is retried.
	{verbs(VerbOpenDevice), ClassDeviceGone, []Errno{eNOENT}},
	// create_ah resolves the neighbour (rxe: for about 1 s), which may be slow
	// or silent; a timeout does not mean that the device hangs.
	{creatingAH, ClassSilentPeer, []Errno{eTIMEDOUT, eHOSTDOWN, eHOSTUNREACH, ErrnoStuck}},
	{posting, ClassQueueFull, []Errno{eNOMEM}},
	// rxe refuses a post in RESET, although nothing moved the QP there: query
	// it.
	{posting, ClassQPError, []Errno{eINVAL}},
	// Already in that state, already attached, or already destroyed.
	{modifying, ClassSuccess, []Errno{eALREADY}},
	{attaching, ClassSuccess, []Errno{eEXIST, eADDRINUSE, eALREADY}},
	{detaching, ClassSuccess, []Errno{eNOENT, eINVAL, eADDRNOTAVAIL}},
	{destroying, ClassSuccess, []Errno{eNOENT, eBADF}},
}

var errnoTable = buildErrnoTable()

func buildErrnoTable() (t [NumVerb][NumErrno]Class) {
	for v := range NumVerb {
		for e := range NumErrno {
			t[v][e] = classOf(v, e)
		}
	}
	return t
}

func classOf(v Verb, e Errno) Class {
	class := ClassRefused
	for _, r := range errnoRules {
		for _, named := range r.errnos {
			if named == e && r.verbs.has(v) {
				class = r.class
			}
		}
	}
	return class
}

// OfErrno classifies the errno that a verb returned. An errno or a verb out of
// range is ClassRefused.
func OfErrno(v Verb, e Errno) Class {
	if v >= NumVerb || e >= NumErrno {
		return ClassRefused
	}
	return errnoTable[v][e]
}

// sentinels maps the errors of the hca contract to errnos.
var sentinels = []struct {
	err   error
	errno Errno
}{
	{hca.ErrInvalid, eINVAL},
	{hca.ErrQueueFull, eNOMEM},
	{hca.ErrNoMemory, eNOMEM},
	{hca.ErrBusy, eBUSY},
	{hca.ErrTimeout, eTIMEDOUT},
	{hca.ErrIO, eIO},
	{hca.ErrClosed, eBADF},
	{hca.ErrNoDevice, eNODEV},
	{hca.ErrRange, eRANGE},
}

// OfError classifies a verb's error; nil is success. [hca.ErrCQ] is a CQ error
// regardless of the verb; an error that wraps no sentinel of hca is
// ClassRefused.
func OfError(v Verb, err error) Class {
	switch {
	case err == nil:
		return ClassSuccess
	case errors.Is(err, hca.ErrCQ):
		return ClassCQError
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return OfErrno(v, s.errno)
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
