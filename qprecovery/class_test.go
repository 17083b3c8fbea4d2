package qprecovery

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"ipoibd/hca"
)

// TestR05Completions checks every status. An error that a peer may cause never has a class
// of the CQ or the device.
func TestR05Completions(t *testing.T) {
	want := map[hca.WCStatus]Class{
		hca.WCSuccess: ClassSuccess, hca.WCWRFlushErr: ClassFlushed,
		hca.WCLocLenErr: ClassRequestError, hca.WCLocQPOpErr: ClassRequestError, hca.WCLocProtErr: ClassRequestError,
		hca.WCMWBindErr: ClassRequestError, hca.WCLocAccessErr: ClassRequestError,
	}
	for s := range hca.WCStatus(255) {
		class, named := want[s]
		if !named {
			class = ClassQPError
		}
		if got := OfCompletion(s); got != class {
			t.Errorf("%v: %v, want %v", s, got, class)
		}
	}
}

func TestR05Events(t *testing.T) {
	want := map[hca.EventType]Class{
		hca.EventCQErr: ClassCQError, hca.EventDeviceFatal: ClassDeviceError,
		hca.EventQPFatal: ClassQPError, hca.EventQPReqErr: ClassQPError, hca.EventQPAccessErr: ClassQPError,
		hca.EventPortActive: ClassPort, hca.EventPortErr: ClassPort, hca.EventLIDChange: ClassPort,
		hca.EventPKeyChange: ClassPort, hca.EventSMChange: ClassPort, hca.EventClientReregister: ClassPort,
		hca.EventGIDChange: ClassPort,
	}
	for e := range hca.EventType(255) {
		class, named := want[e]
		if !named {
			class = ClassIgnored
		}
		if got := OfEvent(e); got != class {
			t.Errorf("%v: %v, want %v", e, got, class)
		}
	}
}

// The errnos are Linux's, so that a backend can pass them on unchanged.
func TestR05ErrnoValues(t *testing.T) {
	for got, want := range map[Errno]syscall.Errno{
		eNOENT: syscall.ENOENT, eINTR: syscall.EINTR, eIO: syscall.EIO, eNXIO: syscall.ENXIO, eBADF: syscall.EBADF,
		eAGAIN: syscall.EAGAIN, eNOMEM: syscall.ENOMEM, eBUSY: syscall.EBUSY, eEXIST: syscall.EEXIST,
		eNODEV: syscall.ENODEV, eINVAL: syscall.EINVAL, eNFILE: syscall.ENFILE, eMFILE: syscall.EMFILE,
		eNOSPC: syscall.ENOSPC, eRANGE: syscall.ERANGE, eNODATA: syscall.ENODATA, eADDRINUSE: syscall.EADDRINUSE,
		eADDRNOTAVAIL: syscall.EADDRNOTAVAIL, eNETDOWN: syscall.ENETDOWN, eNETUNREACH: syscall.ENETUNREACH,
		eNOBUFS: syscall.ENOBUFS, eSHUTDOWN: syscall.ESHUTDOWN, eTIMEDOUT: syscall.ETIMEDOUT,
		eHOSTDOWN: syscall.EHOSTDOWN, eHOSTUNREACH: syscall.EHOSTUNREACH, eALREADY: syscall.EALREADY,
		eDQUOT: syscall.EDQUOT, ErrnoStuck - 1: syscall.Errno(133), // EHWPOISON
	} {
		if got != Errno(want) {
			t.Errorf("%v is %d, want %d", want, want, got)
		}
	}
}

// everywhere holds the classes that do not depend on the verb.
var everywhere = map[Errno]Class{
	0: ClassSuccess, eINTR: ClassTransient, eAGAIN: ClassTransient, eIO: ClassDeviceError, eNXIO: ClassDeviceGone,
	eNODEV: ClassDeviceGone, eSHUTDOWN: ClassDeviceGone, eNFILE: ClassNoResource, eMFILE: ClassNoResource,
	eNOSPC: ClassNoResource, eNOBUFS: ClassNoResource, eDQUOT: ClassNoResource, eNODATA: ClassPort,
	eNETDOWN: ClassPort, eNETUNREACH: ClassPort,
}

// byVerb holds the classes that depend on the verb, by the verb's name or a prefix of it.
var byVerb = map[string]map[Errno]Class{
	"":             {eNOMEM: ClassNoResource, eTIMEDOUT: ClassStuck, ErrnoStuck: ClassStuck, eADDRNOTAVAIL: ClassPort},
	"open_device":  {eNOENT: ClassDeviceGone},
	"create_ah":    {eTIMEDOUT: ClassSilentPeer, ErrnoStuck: ClassSilentPeer, eHOSTDOWN: ClassSilentPeer, eHOSTUNREACH: ClassSilentPeer},
	"post_":        {eNOMEM: ClassQueueFull, eINVAL: ClassQPError},
	"modify_qp_":   {eALREADY: ClassSuccess},
	"attach_mcast": {eEXIST: ClassSuccess, eADDRINUSE: ClassSuccess, eALREADY: ClassSuccess},
	"detach_mcast": {eNOENT: ClassSuccess, eINVAL: ClassSuccess, eADDRNOTAVAIL: ClassSuccess},
	"destroy_":     {eNOENT: ClassSuccess, eBADF: ClassSuccess},
	"dereg_mr":     {eNOENT: ClassSuccess, eBADF: ClassSuccess},
	"dealloc_pd":   {eNOENT: ClassSuccess, eBADF: ClassSuccess},
	"close_device": {eNOENT: ClassSuccess, eBADF: ClassSuccess},
}

// expected looks up the longest prefix of the verb's name.
func expected(v Verb, e Errno) Class {
	class := ClassRefused
	if c, ok := everywhere[e]; ok {
		class = c
	}
	longest := -1
	for name, errnos := range byVerb {
		if c, ok := errnos[e]; ok && strings.HasPrefix(v.String(), name) && len(name) > longest {
			class, longest = c, len(name)
		}
	}
	return class
}

// TestR05Errnos checks every pair of verb and errno, including some undefined ones.
func TestR05Errnos(t *testing.T) {
	for v := range NumVerb {
		for e := range NumErrno {
			if got, want := OfErrno(v, e), expected(v, e); got != want {
				t.Errorf("%v, errno %d: %v, want %v", v, e, got, want)
			}
		}
	}
	if OfErrno(NumVerb, 0) != ClassRefused || OfErrno(VerbPostSend, NumErrno) != ClassRefused {
		t.Error("the class of a verb or an errno out of range is not refused")
	}
}

// Every rule has an effect: no later rules hide it completely.
func TestR05RulesCount(t *testing.T) {
	for i, r := range errnoRules {
		for _, e := range r.errnos {
			counts := false
			for v := range NumVerb {
				counts = counts || r.verbs.has(v) && OfErrno(v, e) == r.class
			}
			if !counts {
				t.Errorf("rule %d has no effect on errno %d", i, e)
			}
		}
	}
}

func TestR05Sentinels(t *testing.T) {
	for _, tt := range []struct {
		verb Verb
		err  error
		want Class
	}{
		{VerbPostSend, nil, ClassSuccess},
		{VerbPostSend, hca.ErrQueueFull, ClassQueueFull},
		{VerbPostRecv, hca.ErrNoMemory, ClassQueueFull},
		{VerbRegMR, hca.ErrNoMemory, ClassNoResource},
		{VerbPostSend, hca.ErrInvalid, ClassQPError},
		{VerbModifyRTS, hca.ErrInvalid, ClassRefused},
		{VerbDetachMcast, hca.ErrInvalid, ClassSuccess},
		{VerbDestroyCQ, hca.ErrBusy, ClassRefused},
		{VerbDestroyCQ, hca.ErrClosed, ClassSuccess},
		{VerbPostSend, hca.ErrClosed, ClassRefused},
		{VerbCreateAH, hca.ErrTimeout, ClassSilentPeer},
		{VerbCreateQP, hca.ErrTimeout, ClassStuck},
		{VerbPollCQ, hca.ErrCQ, ClassCQError},
		{VerbPostSend, hca.ErrIO, ClassDeviceError},
		{VerbOpenDevice, hca.ErrNoDevice, ClassDeviceGone},
		{VerbCreateQP, hca.ErrRange, ClassRefused},
		{VerbCreateQP, errors.New("other"), ClassRefused},
	} {
		for _, err := range []error{tt.err, wrap(tt.err)} {
			if got := OfError(tt.verb, err); got != tt.want {
				t.Errorf("%v: %v: %v, want %v", tt.verb, err, got, tt.want)
			}
		}
	}
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("frobnicate: %w", err)
}

// An error that names its verb is classified by that verb.
func TestR05VerbErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want Class
	}{
		{"create_ah", hca.ErrTimeout, ClassSilentPeer},
		{"modify_qp", hca.ErrTimeout, ClassStuck},
		{"post_send", hca.ErrNoMemory, ClassQueueFull},
		{"unheard_of", hca.ErrNoMemory, ClassNoResource},
	} {
		err := wrap(&hca.VerbError{Verb: tt.name, Err: tt.err})
		if got := OfVerbError(VerbRegMR, err); got != tt.want {
			t.Errorf("%v: %v, want %v", err, got, tt.want)
		}
	}
	if got := OfVerbError(VerbPostRecv, hca.ErrQueueFull); got != ClassQueueFull {
		t.Errorf("error without a verb's name: %v, want %v", got, ClassQueueFull)
	}
}

// Some firmware refuses RESET -> RESET and RESET -> ERR. If the QP is already in the wanted
// state, that is not an error.
func TestR05AlreadyThere(t *testing.T) {
	for c := range NumClass {
		for asked := range hca.NumQPState {
			for found := range hca.NumQPState {
				want := c
				if c == ClassRefused && asked == found {
					want = ClassSuccess
				}
				if got := AlreadyThere(c, asked, found); got != want {
					t.Errorf("%v, %v, %v: %v, want %v", c, asked, found, got, want)
				}
			}
		}
	}
}

func TestVerbNames(t *testing.T) {
	for v := range NumVerb {
		if got, ok := verbNamed(v.String()); !ok || got != v {
			t.Errorf("verb named %v is %v", v, got)
		}
	}
	for s := range hca.NumQPState {
		if got, want := (VerbModifyReset + Verb(s)).String(), "modify_qp_"+strings.ToLower(s.String()); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
}

// Every value of every enumeration has a unique name.
func TestNames(t *testing.T) {
	distinct(t, NumClass)
	distinct(t, NumVerb)
	distinct(t, NumReason)
	distinct(t, NumRung)
	distinct(t, numState)
	distinct(t, numDeviceState)
}

func distinct[T interface {
	~uint8
	fmt.Stringer
}](t *testing.T, n T) {
	t.Helper()
	seen := map[string]bool{}
	for v := range n {
		name := v.String()
		if name == "" || name == "unknown" || seen[name] {
			t.Errorf("%T %d is called %q, want a unique name", n, v, name)
		}
		seen[name] = true
		if m, ok := any(v).(interface{ MarshalText() ([]byte, error) }); ok {
			if b, err := m.MarshalText(); err != nil || string(b) != name {
				t.Errorf("%s is marshalled as %q, %v", name, b, err)
			}
		}
	}
	if n.String() != "unknown" {
		t.Errorf("%T out of range is %v", n, n)
	}
}
