package doctor

import (
	"slices"

	"ipoibd/cmd/ipoibd/internal/report"
)

// Severity is how much a finding matters.
type Severity string

// Severities.
const (
	Error   Severity = "error"   // something does not work
	Warning Severity = "warning" // something works only in part, or may soon fail
	Hint    Severity = "hint"    // everything works, but not as well as it could
)

// Severities lists them, the worst first.
var Severities = []Severity{Error, Warning, Hint}

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
}

// rule finds one thing.
type rule struct {
	id       string
	severity Severity
	find     func(*Facts) []Finding // without ID and Severity
	// because names the rules that explain this one: if one of them has a finding about the same
	// device, those of this rule are left out.
	because []string
}

// IDs returns the IDs of all findings, the most important one first.
func IDs() (ids []string) {
	for _, r := range rules {
		ids = append(ids, r.id)
	}
	return ids
}

// Diagnose returns what is wrong, the most important finding first. It is pure.
func Diagnose(f *Facts) []Finding {
	found := []Finding{}
	for _, r := range rules {
		for _, x := range r.find(f) {
			explained := slices.ContainsFunc(found, func(cause Finding) bool {
				same := cause.device == x.device || cause.device == "" || x.device == ""
				return same && slices.Contains(r.because, cause.ID)
			})
			if !explained {
				x.ID, x.Severity = r.id, r.severity
				found = append(found, x)
			}
		}
	}
	return found
}

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
	// noUnderlay are the states of an underlay that carries nothing.
	noUnderlay = []string{"underlay_unclear", "underlay_missing", "underlay_loopback", "underlay_down", "underlay_no_carrier", "underlay_no_address"}
	// noDevice are those of a device that is not open.
	noDevice = append([]string{"device_suspended", "device_given_up", "port_taken", "hca_missing", "hca_unusable"}, noUnderlay...)
	// noInterface are those of an interface that carries nothing.
	noInterface = append([]string{"device_waiting", "interface_hangs", "interface_failed", "foreign_process", "interface_down", "interface_not_ready"}, noDevice...)
	// noPackets are the rules about what certainly keeps packets away.
	noPackets = append([]string{"firewall_out", "firewall_in", "duplicate_address", "nat", "family_mismatch", "multicast_off"}, noInterface...)
	// noAnswer adds those about what probably does.
	noAnswer = append([]string{"pkey_mismatch", "qkey_mismatch", "unknown_peer", "one_sided_peer", "peer_refuses", "unresolved_peer"}, noPackets...)
)

// rules are in the order of importance: what keeps a daemon from running, a device from opening, an
// interface from working, a peer from answering; then what only some traffic needs; then hints.
var rules = []rule{
	{"config_mistake", Error, configMistake, nil},
	{"socket_denied", Error, socketDenied, nil},
	{"socket_blocked", Error, socketBlocked, nil},
	{"socket_garbage", Error, socketGarbage, nil},
	{"daemon_hangs", Error, daemonHangs, nil},
	{"service_failed", Error, serviceFailed, nil},
	{"daemon_ended", Error, daemonEnded, []string{"service_failed"}},
	{"control_unwritable", Error, controlUnwritable, []string{"socket_blocked", "socket_denied"}},
	{"tun_missing", Error, tunMissing, nil},
	{"no_net_admin", Error, noNetAdmin, nil},
	{"tun_denied", Error, tunDenied, nil},
	{"few_files", Error, fewFiles, nil},
	{"underlay_unclear", Error, underlayUnclear, nil},
	{"underlay_missing", Error, underlayMissing, nil},
	{"underlay_loopback", Error, underlayLoopback, nil},
	{"underlay_down", Error, underlayDown, nil},
	{"underlay_no_carrier", Error, underlayNoCarrier, nil},
	{"underlay_no_address", Error, underlayNoAddress, nil},
	{"hca_missing", Error, hcaMissing, nil},
	{"hca_unusable", Error, hcaUnusable, nil},
	{"memlock_low", Error, memlockLow, nil},
	{"port_taken", Error, portTaken, noUnderlay},
	{"name_taken", Error, nameTaken, nil},
	{"name_in_use", Error, nameInUse, nil},
	{"device_suspended", Error, deviceSuspended, nil},
	{"device_given_up", Error, deviceGivenUp, nil},
	{"device_waiting", Error, deviceWaiting, noDevice},
	{"interface_hangs", Error, interfaceHangs, nil},
	{"interface_failed", Error, interfaceFailed, nil},
	{"foreign_process", Error, foreignProcess, nil},
	{"interface_down", Error, interfaceDown, nil},
	{"interface_not_ready", Error, interfaceNotReady, append([]string{"device_waiting", "interface_hangs", "interface_failed", "foreign_process", "interface_down"}, noDevice...)},
	{"interface_unassigned", Error, interfaceUnassigned, noInterface},
	{"duplicate_address", Error, duplicateAddress, nil},
	{"firewall_out", Error, noticed(report.NoticeFirewall, "the firewall of this host drops what the daemon sends", "allow UDP port 4791", "nft list ruleset"), nil},
	{"firewall_in", Error, firewallIn, nil},
	{"family_mismatch", Error, familyMismatch, noDevice},
	{"nat", Error, noticed(report.NoticeNAT, "a NAT between the hosts translates addresses, which breaks RoCEv2", "connect the hosts without it, or through a tunnel (docs/security.md shows one)", ""), nil},
	{"multicast_off", Error, multicastOff, noUnderlay},
	{"unresolved_peer", Error, noticed(report.NoticeUnresolved, "the name of a peer cannot be resolved", "correct --peer or DNS; the daemon resolves the name again by itself", ""), nil},
	{"pkey_mismatch", Error, pkeyMismatch, noInterface},
	{"qkey_mismatch", Error, qkeyMismatch, noInterface},
	{"unknown_peer", Error, unknownPeer, noInterface},
	{"one_sided_peer", Error, oneSidedPeer, noInterface},
	{"peer_refuses", Error, peerRefuses, noPackets},
	{"no_peer_answers", Error, noPeerAnswers, noAnswer},
	{"address_duplicate", Error, addressDuplicate, nil},

	{"address_overlap", Warning, addressOverlap, nil},
	{"no_address", Warning, noAddress, append([]string{"interface_unassigned"}, noInterface...)},
	{"path_mtu", Warning, pathMTU, nil},
	{"bridge_mtu", Warning, bridgeMTU, nil},
	{"neighbours_full", Warning, neighboursFull, nil},
	{"events_lost", Warning, eventsLost, nil},
	{"files_nearly_exhausted", Warning, filesNearlyExhausted, nil},
	{"other_version", Warning, otherVersion, nil},
	{"unknown_variable", Warning, unknownVariable, nil},
	{"send_buffer", Warning, noticed(report.NoticeSendBuffer, "the send buffer is small, so peers that do not answer can delay traffic to the others", "raise the limit on the host, and restart the daemon", "sysctl -w net.core.wmem_max=134217728"), nil},
	{"other_notice", Warning, otherNotice, nil},

	{"no_ipv6", Hint, noIPv6, nil},
	{"no_ebpf", Hint, noEBPF, append([]string{"no_net_admin"}, noInterface...)},
	{"one_socket", Hint, noticed(report.NoticeOneSocket, "the lanes do not receive in parallel", "correct what the evidence names, and restart the daemon", ""), nil},
	{"no_segmentation", Hint, noSegmentation, nil},
	{"alone", Hint, alone, noAnswer},
	{"drops", Hint, drops, append([]string{"no_peer_answers"}, noAnswer...)},
	{"clock_stepped", Hint, clockStepped, nil},
}
