package journal

import (
	"encoding/json"
	"math"
	"time"
)

// Kinds of entry.
const (
	KindRung      = "rung"      // a recovery entered a rung
	KindRecovered = "recovered" // a recovery ended with the device or interface healthy
	KindStopped   = "stopped"   // a recovery ended because its interface was stopped
	KindFault     = "fault"     // a fault was injected; Text has its kind
	KindNote      = "note"      // anything else that an operator should know, in Text
)

// Entry is one event. At the end of a recovery Rung is the highest rung that it reached,
// Reason its first reason, Duration the time since its detection, and Outage the time
// without service.
type Entry struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Scope    string    `json:"scope"` // name of the interface or the device
	Kind     string    `json:"kind"`
	Rung     string    `json:"rung,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Text     string    `json:"text,omitempty"`
	Duration Seconds   `json:"duration_seconds,omitzero"`
	Outage   Seconds   `json:"outage_seconds,omitzero"`
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

func (s Seconds) String() string { return time.Duration(s).String() }

// MarshalJSON writes the number.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads the number and rounds it to a nanosecond.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil {
		return err
	}
	*s = Seconds(math.Round(number * float64(time.Second)))
	return nil
}
