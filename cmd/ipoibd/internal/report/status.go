// Package report contains the plain data that the daemon shows about itself: what a device or
// an interface publishes, and what `ipoibd status --json` prints. It decides nothing and
// holds no handles, so packages that publish it need not know its readers.
//
// docs/status.schema.json documents each field and each counter. The fields follow four
// rules: a state is an enumeration with a reason beside it, and prose is only for people; a
// duration has its unit in its name; lists may be empty but are never null; a key or a queue
// pair number is a hexadecimal string.
package report

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/docs"
	"ipoibd/hca"
)

// SchemaVersion is the version of the schema. It increases when a field changes its meaning
// or disappears; new fields and counters do not change it.
const SchemaVersion = 1

// Status is the state of the daemon.
type Status struct {
	SchemaVersion int         `json:"schema_version"`
	Time          time.Time   `json:"time"`
	Version       string      `json:"version"`
	PID           int         `json:"pid"`
	Started       time.Time   `json:"started"`
	Goroutines    int         `json:"goroutines"`
	FDs           int         `json:"fds"` // -1: not known
	HeapBytes     uint64      `json:"heap_bytes"`
	Sandbox       Sandbox     `json:"sandbox"`
	Devices       []Device    `json:"devices"`
	Interfaces    []Interface `json:"interfaces"`
}

// Sandbox is what the daemon's process may do.
type Sandbox struct {
	On           bool     `json:"on"`
	Capabilities []string `json:"capabilities"` // permitted, by their names in capabilities(7)
	NoNewPrivs   bool     `json:"no_new_privs"`
	Landlock     int      `json:"landlock"` // version of its ABI; 0: access to files is not restricted
	Seccomp      bool     `json:"seccomp"`
	// Missing are the parts of the sandbox that the kernel does not support, or does not allow.
	Missing []string `json:"missing,omitempty"`
}

// Counters are counts by name.
type Counters map[string]Count

// Count is the value of a counter, and its kind. In JSON it is only the number.
type Count struct {
	Value uint64
	Kind  hca.CounterKind
}

// MarshalJSON writes the number.
func (c Count) MarshalJSON() ([]byte, error) { return json.Marshal(c.Value) }

// UnmarshalJSON reads the number.
func (c *Count) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.Value) }

// Add adds other counters, under their names with a prefix.
func (c Counters) Add(prefix string, more []hca.Counter) {
	for _, m := range more {
		c[prefix+m.Name] = Count{c[prefix+m.Name].Value + m.Value, m.Kind}
	}
}

// Drops returns the sum of the counters of lost frames. Counters that were read from JSON
// have no kinds: use the field Drops of the device or interface.
func (c Counters) Drops() (sum uint64) {
	for _, n := range c {
		if n.Kind == hca.CountDrop {
			sum += n.Value
		}
	}
	return sum
}

// DeviceOpen is the state of a working device. The other states are those of its ladder.
const DeviceOpen = "open"

// Device is the state of one HCA.
type Device struct {
	Name           string          `json:"name"`
	HCA            string          `json:"hca"`
	Kind           string          `json:"kind"`
	Underlay       string          `json:"underlay,omitempty"`
	Reset          string          `json:"reset,omitempty"`
	State          string          `json:"state"`
	Reason         string          `json:"reason"`
	Since          time.Time       `json:"since"`
	LastError      string          `json:"last_error,omitempty"`
	Notice         string          `json:"notice,omitempty"` // the text of Notices
	Notices        Notices         `json:"notices"`
	Opens          uint64          `json:"opens"`
	Attr           *hca.DeviceAttr `json:"attr"`
	Ports          []Port          `json:"ports"`
	Replicates     bool            `json:"replicates"`
	Peers          []netip.Addr    `json:"peers"`
	KnownPeersOnly bool            `json:"known_peers_only"`
	Drops          uint64          `json:"drops"`
	Counters       Counters        `json:"counters"`
	Recovery       *Recovery       `json:"recovery"`
	Coordinator    *Coordinator    `json:"coordinator"`
}

// Port is a port of a device.
type Port struct {
	Num int `json:"num"`
	hca.PortAttr
}

// Coordinator is what this daemon knows about the resets of a shared device.
type Coordinator struct {
	Phase   string   `json:"phase"`
	Leading bool     `json:"leading"`
	Leader  *Leader  `json:"leader"`
	Members []string `json:"members"`
	Trouble string   `json:"trouble,omitempty"`
}

// Leader is another process that resets the device.
type Leader struct {
	PID         int       `json:"pid"` // 0: unknown, or in another PID namespace
	Name        string    `json:"name"`
	SilentSince time.Time `json:"silent_since,omitzero"`
}

// Interface is the state of one ib0, published at Time; counters are those at the moment of
// reading.
type Interface struct {
	Name      string    `json:"name"`
	Device    string    `json:"device"`
	Port      uint8     `json:"port"`
	Time      time.Time `json:"time"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	Detail    string    `json:"detail,omitempty"`
	Since     time.Time `json:"since"`
	MAC       string    `json:"mac"`
	HostMAC   string    `json:"host_mac"`
	MTU       int       `json:"mtu"`
	Carrier   bool      `json:"carrier"`
	Adopted   bool      `json:"adopted"`
	Runtime   bool      `json:"runtime"`
	Netns     string    `json:"netns,omitempty"`
	Netdev    string    `json:"netdev,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Lanes     int       `json:"lanes"`
	SendWRs   int       `json:"send_wrs"` // of each lane
	RecvWRs   int       `json:"recv_wrs"`
	LastError string    `json:"last_error,omitempty"`
	QP        *QP       `json:"qp"`
	Groups    []Group   `json:"groups"`
	Stations  []Station `json:"stations"`
	Peers     []Peer    `json:"peers"`
	Drops     uint64    `json:"drops"` // by the daemon; Kernel has the kernel's
	Counters  Counters  `json:"counters"`
	Kernel    Counters  `json:"kernel"`
	Resolved  Histogram `json:"resolution_seconds"` // the peer table's own resolutions
	Recovery  *Recovery `json:"recovery"`

	// Unassigned is why the host could not be configured as requested; empty: it was.
	Unassigned string `json:"unassigned,omitempty"`
	// NoEBPF is why it has no eBPF programs as requested; empty: it has, or none were requested.
	NoEBPF string `json:"no_ebpf,omitempty"`
	// NoFastPath is why the fast path that was asked for carries nothing: the interface lacks one, or IPsec keeps it closed.
	NoFastPath string `json:"no_fast_path,omitempty"`

	// MTULimit is the path that determines the MTU; zero: the underlay or the operator does.
	MTULimit hca.PathLimit `json:"mtu_limit,omitzero"`
	// Notices are what the MTU makes impossible, and Notice is their text.
	Notices Notices `json:"notices"`
	Notice  string  `json:"notice,omitempty"`
}

// QP is the queue pair of an interface.
type QP struct {
	QPN        hca.QPN  `json:"qpn"`
	State      string   `json:"state,omitempty"`
	Generation uint32   `json:"generation"`
	Address    string   `json:"address"`
	GID        hca.GID  `json:"gid"`
	GIDIndex   int      `json:"gid_index"`
	PKey       hca.PKey `json:"pkey"`
	QKey       hca.QKey `json:"qkey"`
	MaxPayload int      `json:"max_payload"`
}

// Group is a multicast group to which the QP is attached.
type Group struct {
	MGID   hca.GID `json:"mgid"`
	Attach hca.GID `json:"attach"`
}

// Station is a MAC on the host's side.
type Station struct {
	MAC     string    `json:"mac"`
	IPs     []string  `json:"ips"`
	Heard   time.Time `json:"last_heard,omitzero"`
	Default bool      `json:"default"` // it gets what is sent to unknown addresses
	Router  bool      `json:"router"`  // it has said that it is an IPv6 router
	Groups  []string  `json:"groups"`  // IP multicast groups that it has joined
}

// Peer is one entry of the peer table.
type Peer struct {
	MAC    string   `json:"mac"`
	GID    hca.GID  `json:"gid"`
	QPN    hca.QPN  `json:"qpn"`
	IPs    []string `json:"ips"`
	Used   bool     `json:"used"`
	Handle string   `json:"handle"`
	// Sent is when data was last sent to it; Heard is when data, ARP or ND last came from it.
	Sent  time.Time `json:"last_sent,omitzero"`
	Heard time.Time `json:"last_heard,omitzero"`
	// TxBytes and RxBytes are of the IP packets that were sent to it and received from it.
	TxBytes uint64 `json:"tx_bytes"`
	RxBytes uint64 `json:"rx_bytes"`
}

// Histogram is a distribution of durations.
type Histogram struct {
	Count   uint64          `json:"count"`
	Sum     journal.Seconds `json:"sum"`
	Buckets []Bucket        `json:"buckets"` // ascending
}

// Bucket counts the durations up to a bound, those of the buckets before it included.
type Bucket struct {
	LE    journal.Seconds `json:"le"`
	Count uint64          `json:"count"`
}

// NewHistogram describes d. Durations above the last bound are in no bucket.
func NewHistogram(d *hca.Durations) Histogram {
	h := Histogram{Count: d.Count, Sum: journal.Seconds(d.Sum), Buckets: make([]Bucket, len(hca.DurationBounds))}
	var sum uint64
	for i, bound := range hca.DurationBounds {
		sum += d.Buckets[i]
		h.Buckets[i] = Bucket{journal.Seconds(bound), sum}
	}
	return h
}

// Traffic are the frames of an interface and their bytes, with Ethernet headers, as the host sees them.
type Traffic struct{ RXPackets, RXBytes, TXPackets, TXBytes uint64 }

// Traffic returns what the host received and sent: the kernel's counts, plus those of the fast path.
func (f *Interface) Traffic() Traffic {
	sum := func(kernel, fast string) uint64 { return f.Kernel[kernel].Value + f.Counters[fast].Value }
	return Traffic{
		RXPackets: sum(docs.InterfaceKernelRxPackets, docs.InterfaceFastRxPackets),
		RXBytes:   sum(docs.InterfaceKernelRxBytes, docs.InterfaceFastRxBytes),
		TXPackets: sum(docs.InterfaceKernelTxPackets, docs.InterfaceFastTxPackets),
		TXBytes:   sum(docs.InterfaceKernelTxBytes, docs.InterfaceFastTxBytes),
	}
}

// Because returns, on one line, why an interface is not up, or has problems: the detailed text,
// or else the reason's name.
func (f *Interface) Because() string {
	switch {
	case f.Detail != "":
		return OneLine(f.Detail)
	case f.Reason != ReasonNone:
		return f.Reason
	case !f.Carrier && f.State == InterfaceUp:
		return "no carrier"
	}
	return ""
}

// OneLine joins the lines of an error.
func OneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
