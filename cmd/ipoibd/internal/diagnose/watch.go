package diagnose

import (
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
)

const (
	// silentAfter is how long a device sends without an answer until that is reported. Each
	// host sends to the groups of ib0 when it comes up.
	silentAfter = 30 * time.Second
	// RefusedFor is how long a notice stays after the firewall has refused the last datagram.
	RefusedFor = 10 * time.Second
	// natFor is how long a notice stays after the last sign of a NAT.
	natFor = time.Minute
	// ComplainEvery is the least time between two log messages about the addresses of one name, about
	// duplicate addresses, or about a NAT: anyone can forge the evidence of the latter two.
	ComplainEvery = time.Minute
)

// Watch notices what keeps an open software HCA from reaching its peers. Each condition is logged when it
// begins or changes, no matter how often the device is opened. The zero value is ready to use.
type Watch struct {
	traffic traffic
	said    Complaints // by kind
}

// Opened says that the next look is at another instance of the device.
func (w *Watch) Opened() { w.traffic = traffic{} }

// Complaint is a message for the log.
type Complaint struct {
	Message string // a constant
	Args    []any  // as log/slog takes them
}

// Look returns the notices about the instance that was opened last, and what is to be logged.
func (w *Watch) Look(now time.Time, h SoftHCA) (notices report.Notices, log []Complaint) {
	h.symptoms = w.traffic.look(now, &h)
	if w.said == nil {
		w.said = Complaints{}
	}
	for _, c := range deviceConditions {
		text := ""
		holds, words := c.holds(&h)
		if holds {
			text = words.fill(c.text, plain)
		}
		notices.Add(c.kind, text)
		if w.said.Due(now, c.kind, text, c.every) && holds {
			log = append(log, Complaint{c.log, words})
		}
	}
	return notices, log
}

// Complaints holds the last text about each subject that was logged. Other hosts may be able to change
// the text at will, by the addresses in it.
type Complaints map[string]complaint

type complaint struct {
	text string
	at   time.Time
}

// Due reports whether a text about a subject is to be logged: it differs from the last one,
// and that one is old enough. An empty text says that all is well.
func (c Complaints) Due(now time.Time, subject, text string, every time.Duration) bool {
	last := c[subject]
	if text == last.text || now.Sub(last.at) < every {
		return false
	}
	c[subject] = complaint{text, now}
	return true
}

// symptoms are what the counters of a device show.
type symptoms struct {
	silent  bool // it sends, and has never received anything
	refused bool // a firewall of this host rejects its packets
	nat     bool // a NAT seems to translate the packets that it receives
}

// traffic derives symptoms from the counters of one instance of a device.
type traffic struct {
	began     time.Time // first look at which it had sent, zero: there was none
	refused   uint64    // datagrams, at the last look
	refusedAt time.Time // when that number last grew
	nat       uint64    // signs of a NAT, at the last look
	natAt     time.Time // when that number last grew
}

func (t *traffic) look(now time.Time, h *SoftHCA) symptoms {
	if t.began.IsZero() && h.Sent+h.Refused > 0 {
		t.began = now
	}
	if h.Refused > t.refused {
		t.refused, t.refusedAt = h.Refused, now
	}
	if h.NATs > t.nat {
		t.nat, t.natAt = h.NATs, now
	}
	return symptoms{
		silent:  h.Heard == 0 && !t.began.IsZero() && now.Sub(t.began) >= silentAfter,
		refused: !t.refusedAt.IsZero() && now.Sub(t.refusedAt) < RefusedFor,
		nat:     !t.natAt.IsZero() && now.Sub(t.natAt) < natFor,
	}
}
