package diagnose

import (
	"slices"

	"ipoibd/cmd/ipoibd/internal/report"
)

// Severity is how much a finding matters.
type Severity string

// Severities, the worst first.
const (
	Error   Severity = "error"   // something does not work
	Warning Severity = "warning" // something works only in part, or may soon fail
	Hint    Severity = "hint"    // everything works, but not as well as it could
)

// Finding is one thing that is wrong or missing.
type Finding struct {
	ID       string   `json:"id"` // stable
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject,omitempty"` // the interface, device, netdev or file
	What     string   `json:"what"`
	Evidence string   `json:"evidence"` // the fact that shows it
	Advice   string   `json:"advice"`
	// Command carries the advice out, in a shell of this host as root. Words in capitals are to be
	// replaced. Empty: no command can.
	Command string `json:"command,omitempty"`

	device string // that it concerns; empty: all of them
	dev    string // the interface that it concerns; empty: all of the device
}

// rule is a row of the table.
type rule struct {
	id       string
	severity Severity
	of       func(*Facts) []subject // the things it applies to
	holds    func(*subject) bool    // whether one of them has the problem; it adds words for the texts
	// because names the rules that explain this one: if one of them has a finding about the same
	// device, and not about another interface of it, those of this rule are left out.
	because []string
	texts
}

// texts are those of a finding; see [words.fill].
type texts struct{ what, evidence, advice, command string }

// rules are in the order of importance: what keeps a daemon from running, a device from opening, an
// interface from working, a peer from answering; then what only some traffic needs; then hints.
var rules = slices.Concat(startRules, deviceRules, peerRules, warnings, hints)

// Diagnose returns what is wrong, the most important finding first.
func Diagnose(f *Facts) []Finding {
	found := []Finding{}
	for _, r := range rules {
		for _, s := range r.of(f) {
			if r.holds(&s) && !r.explained(found, &s) {
				found = append(found, r.finding(&s))
			}
		}
	}
	return found
}

// explained reports whether an earlier finding explains one of this rule about a subject.
func (r *rule) explained(found []Finding, s *subject) bool {
	same := func(a, b string) bool { return a == b || a == "" || b == "" }
	return slices.ContainsFunc(found, func(cause Finding) bool {
		return same(cause.device, s.device) && same(cause.dev, s.dev) && slices.Contains(r.because, cause.ID)
	})
}

// finding fills the texts in.
func (r *rule) finding(s *subject) Finding {
	return Finding{
		ID: r.id, Severity: r.severity, Subject: s.name, device: s.device, dev: s.dev,
		What: s.fill(r.what, plain), Evidence: s.fill(r.evidence, plain),
		Advice: s.fill(r.advice, plain), Command: s.fill(r.command, quoted),
	}
}

func plain(word string) string  { return word }
func quoted(word string) string { return report.Command("%s", word) }

// Problems returns how many findings are more than hints.
func Problems(found []Finding) (n int) {
	for _, x := range found {
		if x.Severity != Hint {
			n++
		}
	}
	return n
}

// Rules that explain others.
var (
	// badSocket are the reasons why the control socket cannot be replaced.
	badSocket = []string{"socket_blocked", "socket_denied"}
	// noUnderlay are the states of an underlay that carries nothing.
	noUnderlay = []string{
		"underlay_unclear", "underlay_missing", "underlay_loopback", "underlay_down", "underlay_no_carrier",
		"underlay_no_address",
	}
	// noDevice are those of a device that is not open.
	noDevice = append([]string{
		"device_suspended", "device_given_up", "port_taken", "hca_missing", "hca_unusable",
	}, noUnderlay...)
	// noState are those of an interface that does not work.
	noState = append([]string{
		"device_waiting", "interface_hangs", "interface_failed", "foreign_process", "interface_down",
	}, noDevice...)
	// noInterface are those of an interface that carries nothing.
	noInterface = append([]string{"interface_not_ready"}, noState...)
	// noPackets are the rules about what certainly keeps packets away.
	noPackets = append([]string{
		"firewall_out", "firewall_in", "duplicate_address", "nat", "family_mismatch", "multicast_off",
	}, noInterface...)
	// noAnswer adds those about what probably does.
	noAnswer = append([]string{
		"pkey_mismatch", "qkey_mismatch", "unknown_peer", "one_sided_peer", "peer_refuses", "unresolved_peer",
	}, noPackets...)
)
