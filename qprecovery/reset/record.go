package reset

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Device identifies a device, and contains what is needed to complete a reset of it.
type Device struct {
	NodeGUID [8]byte
	PCIAddr  string // empty for a software RDMA device
	Parent   string // netdev of a software RDMA device
	Name     string // such as rxe0
	Means    string // how it is reset, such as link
}

// Key is the base name of a device's files. It consists of properties that stay the same
// when the device is added again. A device with neither PCI address nor parent is
// identified by its name.
func (d Device) Key() string {
	safe := func(r rune) rune {
		if r == '/' || r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}
	return hex.EncodeToString(d.NodeGUID[:]) + "-" + strings.Map(safe, d.place())
}

func (d Device) place() string { return cmp.Or(d.Parent, d.PCIAddr, d.Name) }

// Phase is the progress of a reset.
type Phase string

// Phases.
const (
	PhaseIdle      Phase = ""          // no reset, or the last one has ended
	PhaseWanted    Phase = "pending"   // processes are releasing the device
	PhaseResetting Phase = "resetting" // it is being reset
)

func (p Phase) String() string { return cmp.Or(string(p), "idle") }

// Outcome is the result of a reset, and the reason shown in log, metrics and history.
type Outcome string

// Outcomes.
const (
	OutcomeDone    Outcome = "done"            // the device was reset
	OutcomeFailed  Outcome = "reset_failed"    // the reset failed, or its leader ended before it began
	OutcomeTimeout Outcome = "reset_timeout"   // the reset did not end within its limit
	OutcomeHeld    Outcome = "held_by_process" // another process held the device beyond the grace period
	OutcomeDenied  Outcome = "not_permitted"   // no process has the privilege to reset
	OutcomeAbsent  Outcome = "no_device"       // there is no device to reset
)

var (
	phases   = []Phase{PhaseIdle, PhaseWanted, PhaseResetting}
	outcomes = []Outcome{"", OutcomeDone, OutcomeFailed, OutcomeTimeout, OutcomeHeld, OutcomeDenied, OutcomeAbsent}
)

// Record is the content of an intent file.
type Record struct {
	Phase   Phase
	Outcome Outcome // of the reset Number, once the phase is idle
	// Begun says that the device may be partly reset: a reset began and did not return, or it
	// removed the device and did not bring it back.
	Begun  bool
	Number uint64 // of the reset, for messages; it only grows
	Device Device
	Leader string // the writer's name, for messages
	Detail string // why the reset failed, for messages
}

const (
	// RecordSize is the size of a record in its file: a line of JSON, filled up with
	// spaces.
	RecordSize = 1024
	textSize   = 96 // of each text; names of netdevs have 16 bytes, of RDMA devices 64
)

// ErrRecord reports that the content of a file is not a record.
var ErrRecord = errors.New("not a record of a reset")

func (r *Record) texts() []*string {
	return []*string{&r.Device.PCIAddr, &r.Device.Parent, &r.Device.Name, &r.Device.Means, &r.Leader, &r.Detail}
}

// Encode returns the bytes of a record. It truncates long texts, and replaces characters
// that are not printable ASCII or that JSON would escape.
func (r Record) Encode() []byte {
	for _, text := range r.texts() {
		*text = clean(*text)
	}
	b, err := json.Marshal(r)
	if err != nil || len(b) >= RecordSize {
		panic("a record of a reset does not fit: " + string(b)) // its fields are bounded
	}
	return append(b, strings.Repeat(" ", RecordSize-1-len(b))+"\n"...)
}

// Decode returns the record in a file's content. An empty file is an idle record.
func Decode(b []byte) (r Record, err error) {
	if len(b) == 0 {
		return r, nil
	}
	if len(b) != RecordSize || json.Unmarshal(b, &r) != nil ||
		!slices.Contains(phases, r.Phase) || !slices.Contains(outcomes, r.Outcome) {
		return Record{}, ErrRecord
	}
	for _, text := range r.texts() {
		if clean(*text) != *text {
			return Record{}, ErrRecord
		}
	}
	return r, nil
}

// clean makes a text printable ASCII of at most textSize bytes.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), textSize)]
}
