package control

import (
	"net/netip"
	"time"

	"ipoibd/hca"
)

// Status is what GET /v1/status answers.
type Status struct {
	Version    string      `json:"version"`
	PID        int         `json:"pid"`
	Started    time.Time   `json:"started"`
	Goroutines int         `json:"goroutines"`
	FDs        int         `json:"fds"`
	HeapBytes  uint64      `json:"heap_bytes"`
	Devices    []Device    `json:"devices"`
	Interfaces []Interface `json:"interfaces"`
}

// Device is the state of one HCA.
type Device struct {
	Name     string         `json:"name"`
	HCA      string         `json:"device"`             // "soft", or the RDMA device that is configured
	Kind     string         `json:"kind"`               // "software HCA", "Soft-RoCE" or "hardware"
	Underlay string         `json:"underlay,omitempty"` // netdev under what is no hardware
	Reset    string         `json:"reset,omitempty"`    // means of reset of a real HCA
	State    string         `json:"state"`              // "open" or why not
	Opens    uint64         `json:"opens"`              // instances since the start
	Attr     hca.DeviceAttr `json:"attr"`
	Ports    []hca.PortAttr `json:"ports"` // port n at index n-1; empty unless open
	Notice   string         `json:"notice,omitempty"`
	// Peers are the addresses that multicast is replicated to; null: IP
	// multicast.
	Peers          []netip.Addr  `json:"peers"`
	KnownPeersOnly bool          `json:"known_peers_only"`
	Counters       []hca.Counter `json:"counters"`
	Recovery       *Recovery     `json:"recovery"`
	Coordinator    *Coordinator  `json:"coordinator"` // null until the device was open once, or where no other process uses it
}

// Coordinator is what this daemon knows of the resets of a device that processes share.
type Coordinator struct {
	Phase   string   `json:"phase"`            // "idle", "pending", "resetting" or "unreadable"
	Leading bool     `json:"leading"`          // this daemon leads a reset
	Leader  string   `json:"leader,omitempty"` // the daemon that does, in words; empty: this one or none
	Members []string `json:"members"`          // other processes that have the device open, as far as they can be seen
	// Silent is since when the leader has not gone on; absent where it does.
	Silent time.Time `json:"silent_since,omitzero"`
	// Trouble is why other processes are not reached; empty where they are.
	Trouble string `json:"trouble,omitempty"`
}

// Interface is the state of one ib0. The link fields are the kernel's view.
type Interface struct {
	Name      string        `json:"name"`
	Device    string        `json:"device"`
	Port      uint8         `json:"port"`
	State     string        `json:"state"`  // "down", "waiting", "up", "recovering", "failed", "stopped" or "busy"
	Reason    string        `json:"reason"` // why it is not up, or why other processes' changes may remain
	MAC       string        `json:"mac"`
	HostMAC   string        `json:"host_mac"` // the one MAC behind the interface
	MTU       int           `json:"mtu"`
	Carrier   bool          `json:"carrier"`
	Adopted   bool          `json:"adopted"`
	LastError string        `json:"last_error,omitempty"` // of the queue pair, over or not
	QP        *QP           `json:"qp"`                   // null without a queue pair
	Groups    []Group       `json:"groups"`
	Peers     []Peer        `json:"peers"`
	Counters  []hca.Counter `json:"counters"`
	Kernel    []hca.Counter `json:"kernel"`
	Recovery  *Recovery     `json:"recovery"` // null where it does not answer
}

// NewInterface returns the state of an interface of which no more is known: its
// lists are empty, and not null in JSON.
func NewInterface(name, device string) Interface {
	return Interface{Name: name, Device: device, Groups: []Group{}, Peers: []Peer{}, Counters: []hca.Counter{}, Kernel: []hca.Counter{}}
}

// QP is the queue pair of an interface with its CQs.
type QP struct {
	QPN        hca.QPN     `json:"qpn"`
	State      hca.QPState `json:"state"`
	Generation uint32      `json:"generation"`
	Address    string      `json:"address"`
	GID        hca.GID     `json:"gid"`
	GIDIndex   int         `json:"gid_index"`
	PKey       hca.PKey    `json:"pkey"`
	QKey       hca.QKey    `json:"qkey"`
	SendCQ     string      `json:"send_cq"` // "ok" or "error"
	RecvCQ     string      `json:"recv_cq"`
	MaxPayload int         `json:"max_payload"`
}

// Group is a multicast group that the QP is attached to.
type Group struct {
	MGID   hca.GID `json:"mgid"`
	Attach hca.GID `json:"attach"` // the GID that carries it
}

// Peer is one entry of the peer table.
type Peer struct {
	MAC    string   `json:"mac"`
	GID    hca.GID  `json:"gid"`
	QPN    hca.QPN  `json:"qpn"`
	IPs    []string `json:"ips"`
	Used   bool     `json:"used"`   // the host sent data to it
	Handle string   `json:"handle"` // of its AH: none, asked, ready, waiting or refused
}

// States that the daemon itself gives.
const (
	StateOpen = "open" // a device that works
	StateBusy = "busy" // an interface that does not answer
)
