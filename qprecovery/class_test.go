package qprecovery

import (
	"errors"
	"fmt"
	"strings"
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

// everywhere holds the classes of errors that do not depend on the verb.
var everywhere = map[error]Class{
	hca.ErrCQ: ClassCQError, hca.ErrStuck: ClassStuck, hca.ErrInvalid: ClassRefused, hca.ErrQueueFull: ClassNoResource,
	hca.ErrNoMemory: ClassNoResource, hca.ErrBusy: ClassRefused, hca.ErrTimeout: ClassStuck, hca.ErrIO: ClassDeviceError,
	hca.ErrClosed: ClassRefused, hca.ErrNoDevice: ClassDeviceGone, hca.ErrRange: ClassRefused,
}

// byVerb holds the others, by the verb's name or a prefix of it.
var byVerb = map[string]map[error]Class{
	"create_ah":    {hca.ErrTimeout: ClassSilentPeer, hca.ErrStuck: ClassSilentPeer},
	"post_":        {hca.ErrNoMemory: ClassQueueFull, hca.ErrQueueFull: ClassQueueFull, hca.ErrInvalid: ClassQPError},
	"detach_mcast": {hca.ErrInvalid: ClassSuccess},
	"destroy_":     {hca.ErrClosed: ClassSuccess},
	"dereg_mr":     {hca.ErrClosed: ClassSuccess},
	"dealloc_pd":   {hca.ErrClosed: ClassSuccess},
	"close_device": {hca.ErrClosed: ClassSuccess},
}

// TestR05Errors checks every pair of a verb and an error of the contract.
func TestR05Errors(t *testing.T) {
	for v := range NumVerb {
		for err, want := range everywhere {
			for prefix, classes := range byVerb {
				if c, ok := classes[err]; ok && strings.HasPrefix(v.String(), prefix) {
					want = c
				}
			}
			if got := OfError(v, err); got != want {
				t.Errorf("%v: %v: %v, want %v", v, err, got, want)
			}
		}
	}
}

// Every rule has an effect: no earlier rules hide it completely. Every error has a rule for
// every verb.
func TestR05RulesCount(t *testing.T) {
	total := map[error]bool{}
	for i, r := range errorRules {
		counts := false
		for v := range NumVerb {
			counts = counts || r.verbs.has(v) && OfError(v, r.err) == r.class
		}
		if !counts {
			t.Errorf("rule %d has no effect", i)
		}
		total[r.err] = total[r.err] || r.verbs == everyVerb
	}
	for err := range everywhere {
		if !total[err] {
			t.Errorf("%v has no rule for every verb", err)
		}
	}
	if len(total) != len(everywhere) {
		t.Errorf("%d errors have rules, the test knows %d", len(total), len(everywhere))
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
		{VerbModifyQP, hca.ErrInvalid, ClassRefused},
		{VerbDetachMcast, hca.ErrInvalid, ClassSuccess},
		{VerbDestroyCQ, hca.ErrBusy, ClassRefused},
		{VerbDestroyCQ, hca.ErrClosed, ClassSuccess},
		{VerbPostSend, hca.ErrClosed, ClassRefused},
		{VerbCreateAH, hca.ErrTimeout, ClassSilentPeer},
		{VerbCreateQP, hca.ErrTimeout, ClassStuck},
		{VerbCreateAH, hca.ErrStuck, ClassSilentPeer}, // the guard's limit is below the time that a peer may take
		{VerbCreateQP, hca.ErrStuck, ClassStuck},
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
