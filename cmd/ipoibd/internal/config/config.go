// Package config holds the settings of an operator as plain data, from flags or from a
// YAML file, and checks them in one place. All mistakes are reported at once, as data:
// file, line, field and text. [MakePlan] compares two configurations for a reload.
package config

import (
	"cmp"
	"encoding/json"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Limits and defaults.
const (
	DefaultControl = "/run/ipoibd/control.sock"
	// DefaultCoordinator serves real HCAs: no other process uses a software HCA.
	DefaultCoordinator = "/run/ipoibd/reset"
	DefaultDevice      = SoftHCA
	DefaultName        = "ib0"

	// MaxLanes bounds the lanes of a software HCA.
	MaxLanes = transport.MaxLanes

	maxNameLen  = 15  // IFNAMSIZ-1
	maxHCALen   = 63  // IB_DEVICE_NAME_MAX-1 (include/rdma/ib_verbs.h)
	maxControl  = 107 // sun_path of unix(7), less its final zero
	minMTU      = 68  // RFC 791
	maxQueueWRs = 16384
	maxPeers    = 16384
	maxPKeys    = 128
	maxOwner    = 512  // bytes: the names of a CNI network, a container and an interface
	maxPath     = 4095 // PATH_MAX-1
	maxAssigned = 256  // addresses, and routes, of an interface
	maxGIDIndex = 255  // sgid_index of struct ibv_global_route (infiniband/verbs.h)

	minGrace  = 100 * time.Millisecond // closing takes a few milliseconds
	maxGrace  = time.Hour
	minGiveUp = time.Second
	maxGiveUp = 30 * 24 * time.Hour
)

// Config is everything the daemon runs. The tags are the names of the fields in a file, and in the state that a daemon
// hands over to another version.
type Config struct {
	Control string `yaml:"control" json:"control"` // path of the control socket
	// MetricsListen is the TCP address, host:port, that serves probes and metrics; empty: none.
	MetricsListen string `yaml:"metrics_listen" json:"metrics_listen"`
	// Sandbox makes the daemon give up, at its start, all privileges that the configuration does not
	// need.
	Sandbox bool `yaml:"sandbox" json:"-"`
	// Lend: interfaces will be added at run time and lent to network namespaces. Such a daemon needs
	// none of its own.
	Lend       bool        `yaml:"lend" json:"lend"`
	Devices    []Device    `yaml:"devices" json:"devices"`
	Interfaces []Interface `yaml:"interfaces" json:"interfaces"`
}

// New returns a configuration with the defaults of its own settings.
func New() Config { return Config{Control: DefaultControl, Sandbox: true} }

// Interface is one ib0.
type Interface struct {
	Name   string   `yaml:"name" json:"name"`
	Device string   `yaml:"device" json:"device"`
	Port   uint8    `yaml:"port" json:"port"`
	PKey   hca.PKey `yaml:"pkey" json:"pkey"`
	// GID and GIDIndex select the GID, by address or by its index in the port's table;
	// without either (empty, nil) the daemon selects it.
	GID      string `yaml:"gid" json:"gid"`
	GIDIndex *int   `yaml:"gid_index" json:"gid_index"`
	MTU      int    `yaml:"mtu" json:"mtu"` // 0: the largest that the group allows
	// Addresses and Routes are assigned to the interface, beside those that the host sets; see
	// [ParseAddress] and [ParseRoute]. Up sets it up at the start.
	Addresses []string `yaml:"addresses" json:"addresses"`
	Routes    []string `yaml:"routes" json:"routes"`
	Up        bool     `yaml:"up" json:"up"`
	// SourceCheck drops frames of the host that come from, or claim, an address other than Addresses and
	// its link-local ones.
	SourceCheck bool `yaml:"source_check" json:"source_check"`
	// SendWRs and RecvWRs are the lengths of the queues; Validate replaces 0 by the device's
	// default.
	SendWRs int  `yaml:"send_wrs" json:"send_wrs"`
	RecvWRs int  `yaml:"recv_wrs" json:"recv_wrs"`
	EBPF    bool `yaml:"ebpf" json:"ebpf"` // filter and steer the host's frames in the kernel
	// Follow keeps the privileges to follow the interface into other network namespaces.
	Follow bool `yaml:"follow" json:"follow"`
	// Netns is the path of the network namespace to which the interface is lent; empty: it is in that
	// of the daemon. Netdev is its name there; empty: Name.
	Netns  string `yaml:"netns" json:"netns"`
	Netdev string `yaml:"netdev" json:"netdev"`
	// Owner says for whom the interface was added. The daemon only shows it.
	Owner string `yaml:"owner" json:"owner"`
	Lanes int    `json:"-"` // of its device; Validate sets it
	// Request is the request that has added the interface at run time; empty: it is of the
	// configuration of the start, or of a file.
	Request string `json:"request"`
	// Existing: the interface must exist, left by an earlier daemon.
	Existing bool `json:"existing"`
}

// Runtime reports whether the interface was added at run time.
func (f *Interface) Runtime() bool { return f.Request != "" }

// NetdevName returns the name of the interface in the kernel.
func (f *Interface) NetdevName() string { return cmp.Or(f.Netdev, f.Name) }

// NewInterface returns an interface with its defaults.
func NewInterface() Interface {
	return Interface{Name: DefaultName, Device: DefaultDevice, Port: 1, PKey: hca.PKeyDefault, EBPF: true}
}

// UnmarshalJSON decodes what another version has handed over, over the defaults.
func (f *Interface) UnmarshalJSON(text []byte) error {
	type plain Interface
	p := plain(NewInterface())
	err := json.Unmarshal(text, &p)
	*f = Interface(p)
	return err
}

// Single returns the configuration of one interface on one device. The device has the
// name of its HCA. If its P_Key table is configured, it contains only the
// interface's P_Key.
func Single(control string, d Device, f Interface) *Config {
	d.Name, f.Device = d.HCA, d.HCA
	if lookUp(d.HCA).pkeys {
		d.PKeys = []hca.PKey{f.PKey}
	}
	return &Config{Control: control, Sandbox: true, Devices: []Device{d}, Interfaces: []Interface{f}}
}
