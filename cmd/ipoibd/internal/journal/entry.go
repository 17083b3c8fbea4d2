package journal

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
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

// Entered returns the entry for a rung that the recovery of scope has entered.
func Entered(scope string, a qprecovery.Entered) Entry {
	return Entry{Scope: scope, Kind: KindRung, Rung: a.Rung.String(), Reason: a.Reason.String()}
}

// Ended returns the entry for the end of a recovery of scope. Its text names the failed
// request that caused the recovery, and the number of further steps that were not recorded.
func Ended(scope string, r qprecovery.Ended) Entry {
	e := Entry{
		Time: r.End, Scope: scope, Kind: KindRecovered, Rung: r.Worst().String(), Reason: r.Reason.String(),
		Duration: Seconds(r.Duration()), Outage: Seconds(r.Outage()),
	}
	if r.Stopped {
		e.Kind = KindStopped
	}
	var parts []string
	if r.Request != nil {
		parts = append(parts, Blame(*r.Request))
	}
	if r.Omitted > 0 {
		parts = append(parts, fmt.Sprintf("%d more steps", r.Omitted))
	}
	e.Text = strings.Join(parts, "; ")
	return e
}

// Blame describes a failed work request in one line (R3).
func Blame(q qprecovery.Request) string {
	opcode := "send"
	if q.Opcode == hca.WCRecv {
		opcode = "receive"
	}
	text := fmt.Sprintf("%s of a %s, wr_id 0x%x, vendor error 0x%x", q.Status, opcode, q.WRID, q.VendorErr)
	for _, s := range q.SGList {
		text += fmt.Sprintf(", %d bytes lkey 0x%x", s.Length, s.LKey)
	}
	if q.DestQPN != 0 {
		text += fmt.Sprintf(", to QP %s", q.DestQPN)
	}
	return text
}
