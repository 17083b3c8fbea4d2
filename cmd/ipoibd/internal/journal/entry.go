package journal

import (
	"encoding/json"
	"math"
	"time"
)

// Kinds of entry.
const (
	KindRung      = "rung"      // a recovery entered a rung
	KindRecovered = "recovered" // a recovery ended in health
	KindStopped   = "stopped"   // a recovery ended because its interface was stopped
	KindFault     = "fault"     // a fault was injected
	KindNote      = "note"      // what else an operator should know, in Text
)

// Entry is one thing that happened.
type Entry struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Scope  string    `json:"scope"`            // name of the interface or the device
	Kind   string    `json:"kind"`             // one of the kinds above
	Rung   string    `json:"rung,omitempty"`   // at the end of a recovery: the highest it reached
	Reason string    `json:"reason,omitempty"` // at the end of a recovery: its first one
	Text   string    `json:"text,omitempty"`   // for people
	// Duration is the time from detection to the end, Outage that without
	// service, both of a recovery that has ended. Seconds in JSON.
	Duration time.Duration `json:"-"`
	Outage   time.Duration `json:"-"`
}

// Seconds is a duration that JSON has as a number of seconds.
type Seconds time.Duration

// MarshalJSON writes the number.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads it, rounded to a nanosecond.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil {
		return err
	}
	*s = Seconds(math.Round(number * float64(time.Second)))
	return nil
}

// plain is an entry without its methods.
type plain Entry

// wire is an entry as JSON has it.
type wire struct {
	plain
	Duration Seconds `json:"duration,omitzero"`
	Outage   Seconds `json:"outage,omitzero"`
}

// MarshalJSON writes durations in seconds.
func (e Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(wire{plain(e), Seconds(e.Duration), Seconds(e.Outage)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Entry) UnmarshalJSON(text []byte) error {
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*e = Entry(w.plain)
	e.Duration, e.Outage = time.Duration(w.Duration), time.Duration(w.Outage)
	return nil
}
