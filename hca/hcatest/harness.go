package hcatest

import (
	"testing"
	"time"

	"ipoibd/hca"
)

// Host is an opened device with functions that act on its underlay. A function may be nil;
// the suite then omits the tests that need it.
type Host struct {
	Dev       hca.Device
	Port      uint8
	SGIDIndex int // index of the GID to send from
	// DLID is the port's LID on InfiniBand, else 0.
	DLID uint16

	SetLink   func(up bool) // PORT_ERR, PORT_ACTIVE
	AddGID    func()        // GID_CHANGE
	RemoveDev func()        // DEVICE_FATAL
	// Stall blocks the network, so that sends stay posted, or unblocks it.
	Stall func(on bool)
}

// Harness opens the devices that the suite tests.
type Harness struct {
	// Open returns two hosts that can reach each other. The suite closes them.
	Open func(t *testing.T) (a, b Host)
	// In runs a test, for instance in a synctest bubble; nil: it is called directly.
	In       func(t *testing.T, f func(*testing.T))
	Features Features
}

// Features declares how a backend differs.
type Features struct {
	Patience time.Duration // how long to wait for what must happen; 0 means 10 s

	MGID hca.GID // a group to use; zero: no multicast
	MLID uint16  // MLID of that group, InfiniBand only
	// NoGRH runs the suite with address handles without a GRH to unicast destinations, as within an InfiniBand
	// subnet. The LID in a completion then identifies the sender, and the GRH area has no defined contents.
	NoGRH bool

	SendErrorIsSQE   bool // a failed send moves the QP to SQE; else to ERR
	SendErrorFlushes bool // a failed send is itself reported as flushed
	ShortRecvIsErr   bool // a receive that is too short fails and moves the QP to ERR; else the message is dropped
	LongSendIsErr    bool // a send above MaxPayload fails; else it is lost
	OverrunVoidsCQ   bool // an overrun makes Poll fail; else only the event reports it
	OwnGroupLoops    bool // own multicast comes back to the sending QP
	ChecksProtection bool // sends from memory of another PD, or outside a region, fail
	ChecksWholeRecv  bool // all memory of a receive is checked; else only the part that is written
	LateRecvFlushes  bool // a receive posted in ERR is flushed; else RESET drops it
	SQDResumes       bool // requests held in SQD are sent on return to RTS; else with the next post
	OtherPKey        bool // entries 0 and 1 of the P_Key table are different partitions
}

func (f *Features) patience() time.Duration {
	if f.Patience == 0 {
		return 10 * time.Second
	}
	return f.Patience
}

// sendErrors returns the possible statuses of a send from memory that it must not access.
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
	// needs reports whether the test applies to the backend; nil: it does.
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
		errorChecks, cqChecks, multicastChecks, eventChecks, queueChecks, offloadChecks, lroChecks,
	} {
		for _, c := range group {
			if c.needs == nil || c.needs(h.Features, has) {
				t.Run(c.name, func(t *testing.T) { h.In(t, func(t *testing.T) { c.run(h.open(t)) }) })
			}
		}
	}
}

// inquire opens the hosts once to find out which functions they have.
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

// bench is the test and the two hosts of a check.
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
