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
	began         time.Time // first look at which it had sent, zero: there was none
	refused, nats growth
}

// growth is a counter that is looked at now and then.
type growth struct {
	count uint64    // at the last look
	at    time.Time // when it last grew
}

// within reports whether the counter, which is now at a count, has grown in the time before now.
func (g *growth) within(limit time.Duration, now time.Time, count uint64) bool {
	if count > g.count {
		g.count, g.at = count, now
	}
	return !g.at.IsZero() && now.Sub(g.at) < limit
}

func (t *traffic) look(now time.Time, h *SoftHCA) symptoms {
	if t.began.IsZero() && h.Sent+h.Refused > 0 {
		t.began = now
	}
	return symptoms{
		silent:  h.Heard == 0 && !t.began.IsZero() && now.Sub(t.began) >= silentAfter,
		refused: t.refused.within(RefusedFor, now, h.Refused),
		nat:     t.nats.within(natFor, now, h.NATs),
	}
}
