package hcatest

import (
	"testing"
	"time"

	"ipoibd/hca"
)

// Host is an opened device and what can be done to its underlay. A nil function
// cannot be done; the tests that need it are not in the suite then.
type Host struct {
	Dev       hca.Device
	Port      uint8
	SGIDIndex int // of the GID to send from
	// DLID is the port's LID on InfiniBand, else 0.
	DLID uint16

	SetLink   func(up bool) // PORT_ERR, PORT_ACTIVE
	AddGID    func()        // GID_CHANGE
	RemoveDev func()        // DEVICE_FATAL
	// Stall makes sending stop, or go on, so that sends stay posted.
	Stall func(on bool)
}

// Harness opens what the suite tests.
type Harness struct {
	// Open returns two hosts that reach each other. The suite closes them.
	Open func(t *testing.T) (a, b Host)
	// In runs a test, in a synctest bubble for instance; nil runs it as it is.
	In       func(t *testing.T, f func(*testing.T))
	Features Features
}

// Features declares how a backend differs.
type Features struct {
	Patience time.Duration // for what must come; 10 s when 0

	MGID hca.GID // a group to use, zero: no multicast
	MLID uint16  // of that group, InfiniBand only

	SendErrorIsSQE   bool // a failed send leads to SQE; else to ERR
	SendErrorFlushes bool // a failed send is itself reported as flushed
	ShortRecvIsErr   bool // a receive too short fails and leads to ERR; else the message is dropped
	LongSendIsErr    bool // a send above MaxPayload fails; else it is lost
	OverrunVoidsCQ   bool // an overrun makes Poll fail; else only the event tells
	OwnGroupLoops    bool // own multicast comes back to the sending QP
	ChecksProtection bool // sends from memory of another PD, or outside of it, fail
	ChecksWholeRecv  bool // all that a receive names is checked; else what is written
	LateRecvFlushes  bool // a receive posted in ERR is flushed; else RESET drops it
	SQDResumes       bool // back in RTS, what SQD held goes out; else with the next post
	OtherPKey        bool // entry 1 of the P_Key table is another partition than entry 0
}

func (f *Features) patience() time.Duration {
	if f.Patience == 0 {
		return 10 * time.Second
	}
	return f.Patience
}

// sendErrors are what may become of a send from memory that it must not name.
func (f *Features) sendErrors() []hca.WCStatus {
	if f.SendErrorFlushes {
		return []hca.WCStatus{hca.WCWRFlushErr}
	}
	return []hca.WCStatus{hca.WCLocProtErr, hca.WCLocQPOpErr}
}

// check is one test of the suite.
type check struct {
	name string
	run  func(*bench)
	// needs says whether the backend has what the test tries; nil: it has.
	needs func(Features, Host) bool
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if h.In == nil {
		h.In = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	has := h.inquire(t)
	for _, group := range [][]check{
		deviceChecks, lifeChecks, stateChecks, postChecks, transferChecks, dropChecks,
		errorChecks, cqChecks, multicastChecks, eventChecks,
	} {
		for _, c := range group {
			if c.needs == nil || c.needs(h.Features, has) {
				t.Run(c.name, func(t *testing.T) { h.In(t, func(t *testing.T) { c.run(h.open(t)) }) })
			}
		}
	}
}

// inquire opens the hosts once, to see which functions they have.
func (h *Harness) inquire(t *testing.T) (has Host) {
	t.Run("inquire", func(t *testing.T) {
		h.In(t, func(t *testing.T) { has = h.open(t).a })
	})
	return has
}

func (h *Harness) open(t *testing.T) *bench {
	a, b := h.Open(t)
	t.Cleanup(func() {
		must(t, a.Dev.Close(), "close device a")
		must(t, b.Dev.Close(), "close device b")
	})
	return &bench{T: t, f: h.Features, a: a, b: b}
}

// bench is what a check works on.
type bench struct {
	*testing.T
	f    Features
	a, b Host
}

func must(t testing.TB, err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
