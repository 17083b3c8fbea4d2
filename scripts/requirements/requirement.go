package main

import (
	"errors"
	"fmt"
	"slices"
)

var errUnknown = errors.New("no such requirement")

// requirements says in short what each requires; R1 is at index 1.
var requirements = [...]string{
	1:  "A CQ error rebuilds the CQ and every QP on it; nothing smaller is tried",
	2:  "A failed work request is a QP matter: query it, resume it from SQE, reset it from ERR, recreate it if that does not last",
	3:  "Such an error is local: it never passes the QP rungs, is logged with its request, and receive buffers hold the largest MTU",
	4:  "Flushed completions return buffers only; one that nobody caused has the QP queried, once per incident",
	5:  "Every completion status, event and errno of a verb has exactly one class",
	6:  "Rungs are climbed one by one, by failure or by budget, each for a named reason; repetition stops at the CQ rung",
	7:  "The device is reset for a fatal event, a proven freeze, a failed CQ rung or the operator, never for what a peer or the network does",
	8:  "A freeze is suspected within a stated bound and proven on a fresh QP and CQ; an idle link, a port that is down, slow address handles, a full wire and a stall of our own do not count as freezes; each device is checked as a whole",
	9:  "Frames are held for a bounded time, then the carrier goes down; ib0, its addresses, routes and connections live on",
	10: "Frames in flight are sent again or counted as dropped, once, and no buffer leaks",
	11: "A client asks for a reset and says when it is ready; it hears of reset pending and reset ended",
	12: "Clients release what they own in the order of dependency, and start in the reverse order",
	13: "Every client is told: an idle one too, and at once one that comes during a reset",
	14: "A silent client holds a reset up for a configurable grace period at most, and is then a zombie",
	15: "Requests during a reset are one reset, and a client that dies does not block it",
	16: "Interfaces of one daemon share a coordinator, and so do daemons on one device, by the kernel's file locks; who holds it is named",
	17: "A reset needs no disk: memory is locked, no file is opened, no program started",
	18: "From a fatal event on, requests are flushed in software, posts fail at once, releasing succeeds and other verbs fail",
	19: "A zombie answers one error to every call, may be closed twice, and lets go of the callers of verbs that hang",
	20: "Late completions, events and handles of an earlier generation are recognised and dropped",
	21: "Reset, unplug, removal of the driver and PCI errors take one path: drop everything, start from scratch",
	22: "Service restarts by itself on the same device only, told by its GUIDs",
	23: "The wait for a device ends after a configurable time, 10 minutes by default; the operator can still restart",
	24: "Arrival and removal are noticed by events, and the list of devices is read anew",
	25: "Each trigger is handled: events, PCI errors, silence, isolation, unplug, removal, the port, the operator",
	26: "Interfaces stop before their port and start after it; sleep and shutdown are heard and not held up too long",
	27: "A device that vanishes crashes nothing: requests wait within a bound or fail, and service resumes with it",
	28: "Nothing assumes one device: what belongs to one never meets another",
	29: "The operator sees rung, cause, counts, outages and the last recoveries",
}

// place is a named place in a file, whose path is relative to the root.
type place struct {
	path, name string
}

// evidence is what the tree has on one requirement, in the order of its files.
type evidence struct {
	code  []string // paths
	tests []place
}

// findings has the evidence of each requirement at its number.
type findings [len(requirements)]evidence

// of refuses numbers of requirements that do not exist.
func (f *findings) of(number int) (*evidence, error) {
	if number < 1 || number >= len(f) {
		return nil, fmt.Errorf("%w: R%d", errUnknown, number)
	}
	return &f[number], nil
}

// addCode notes a file, once however often it names the requirement.
func (f *findings) addCode(number int, path string) error {
	e, err := f.of(number)
	if err != nil {
		return err
	}
	if !slices.Contains(e.code, path) {
		e.code = append(e.code, path)
	}
	return nil
}

// addTest notes a test, once.
func (f *findings) addTest(number int, test place) error {
	e, err := f.of(number)
	if err != nil {
		return err
	}
	if !slices.Contains(e.tests, test) {
		e.tests = append(e.tests, test)
	}
	return nil
}
