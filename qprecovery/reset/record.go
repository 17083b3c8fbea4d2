package reset

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
)

// Device says what a record is about, and what a reset that was cut short needs in
// order to be completed.
type Device struct {
	NodeGUID [8]byte
	PCIAddr  string // empty for a software RDMA device
	Parent   string // netdev of a software RDMA device
	Name     string // such as rxe0
	Means    string // how it is reset, such as link
}

// Key is the name of a device's files: of what stays the same when the device is
// added again. A device with neither PCI address nor parent is known by its name.
func (d Device) Key() string {
	where := d.Parent
	for _, other := range []string{d.PCIAddr, d.Name} {
		if where == "" {
			where = other
		}
	}
	safe := func(r rune) rune {
		if r == '/' || r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}
	return hex.EncodeToString(d.NodeGUID[:]) + "-" + strings.Map(safe, where)
}

// Phase is what a record says of the reset.
type Phase uint8

// Phases.
const (
	PhaseIdle      Phase = iota // no reset, or the last one has ended
	PhaseWanted                 // processes release the device
	PhaseResetting              // it is being reset
	PhaseBad                    // not a record of this device; never written
)

var phaseNames = [...]string{"idle", "pending", "resetting", "unreadable"}

func (p Phase) String() string { return phaseNames[min(p, PhaseBad)] }

// Outcome says how a reset ended; its String is the reason in log, metric and
// history.
type Outcome uint8

// Outcomes.
const (
	OutcomeNone    Outcome = iota
	OutcomeDone            // the device was reset
	OutcomeFailed          // the reset failed, or its leader ended before it began
	OutcomeTimeout         // the reset did not end within its limit
	OutcomeHeld            // another process held the device beyond the grace period
	OutcomeDenied          // no process has the privilege to reset
	OutcomeAbsent          // there is no device to reset
	numOutcome
)

var outcomeNames = [numOutcome]string{"none", "done", "reset_failed", "reset_timeout", "held_by_process", "not_permitted", "no_device"}

func (o Outcome) String() string {
	if o < numOutcome {
		return outcomeNames[o]
	}
	return "unknown"
}

// Record is the content of an intent file.
type Record struct {
	Phase   Phase
	Outcome Outcome // of the reset Number, once the phase is idle
	// Begun says that the device may be half reset: a reset began and did not return.
	Begun  bool
	Number uint64 // of the reset, for messages; it only grows
	PID    uint32 // of the writer, in its PID namespace; for messages only
	Device Device
	Leader string // the writer's name; for messages only
	Detail string // why the reset failed; for messages only
}

// Layout of a record: fixed fields, then texts padded with zeros, then a CRC-32
// (IEEE) of all before it, against a read in the middle of a write.
const (
	magic   = "IPRL"
	version = 1

	atPhase  = 5
	atNumber = 8
	atPID    = 16
	atGUID   = 20
	atTexts  = 28
	textSize = 96 // of each text; names of netdevs have 16, of RDMA devices 64
	atCRC    = atTexts + numText*textSize

	// RecordSize is the size of a record in its file.
	RecordSize = atCRC + 4
)

const numText = 6

func (r *Record) texts() [numText]*string {
	return [...]*string{&r.Device.PCIAddr, &r.Device.Parent, &r.Device.Name, &r.Device.Means, &r.Leader, &r.Detail}
}

// ErrRecord says that the content of a file is no record.
var ErrRecord = errors.New("not a record of a reset")

// Encode returns the bytes of a record. Texts are cut and cleaned.
func (r Record) Encode() []byte {
	b := make([]byte, RecordSize)
	copy(b, magic)
	b[4], b[atPhase], b[atPhase+1] = version, byte(r.Phase), byte(r.Outcome)
	if r.Begun {
		b[atPhase+2] = 1
	}
	binary.BigEndian.PutUint64(b[atNumber:], r.Number)
	binary.BigEndian.PutUint32(b[atPID:], r.PID)
	copy(b[atGUID:], r.Device.NodeGUID[:])
	for i, text := range r.texts() {
		copy(b[atTexts+i*textSize:][:textSize], clean(*text))
	}
	binary.BigEndian.PutUint32(b[atCRC:], crc32.ChecksumIEEE(b[:atCRC]))
	return b
}

// Decode returns the record of a file's content. An empty file is an idle record.
func Decode(b []byte) (r Record, err error) {
	if len(b) == 0 {
		return r, nil
	}
	if len(b) != RecordSize || string(b[:4]) != magic || b[4] != version ||
		binary.BigEndian.Uint32(b[atCRC:]) != crc32.ChecksumIEEE(b[:atCRC]) {
		return r, ErrRecord
	}
	r.Phase, r.Outcome, r.Begun = Phase(b[atPhase]), Outcome(b[atPhase+1]), b[atPhase+2] == 1
	r.Number = binary.BigEndian.Uint64(b[atNumber:])
	r.PID = binary.BigEndian.Uint32(b[atPID:])
	copy(r.Device.NodeGUID[:], b[atGUID:])
	for i, text := range r.texts() {
		field := b[atTexts+i*textSize:][:textSize]
		*text = string(bytes.TrimRight(field, "\x00"))
		if clean(*text) != *text {
			return Record{}, ErrRecord
		}
	}
	if r.Phase >= PhaseBad || r.Outcome >= numOutcome || b[atPhase+2] > 1 {
		return Record{}, ErrRecord
	}
	return r, nil
}

// clean makes a text printable ASCII of at most textSize bytes.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), textSize)]
}
