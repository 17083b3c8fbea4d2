// Package config holds the settings of an operator as plain data, from flags or from a
// YAML file, and checks them in one place. All mistakes are reported at once, as data:
// file, line, field and text. [MakePlan] compares two configurations for a reload.
//
// [Fields], [DeviceFields] and [InterfaceFields] describe the fields, except for their use. A new field needs a member
// of a struct, a row, code that uses it, and a case in TestPlanOfEachField. If it has a condition, add a row such as
// "| `up` | | | the condition |" to its table in docs/config.md. Then 'make man' rewrites the documentation.
package config

import (
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

// Config is everything the daemon runs. The JSON names are those of the state that a daemon hands over to another
// version.
type Config struct {
	Control       string      `json:"control"`
	MetricsListen string      `json:"metrics_listen"`
	Sandbox       bool        `json:"-"`
	Lend          bool        `json:"lend"` // a daemon that lends needs no interface of its own
	Devices       []Device    `json:"devices"`
	Interfaces    []Interface `json:"interfaces"`

	Added map[string]Addition `json:"added"` // the interfaces that were added at run time, by name
}

// New returns a configuration with the defaults of its own settings.
func New() Config { return Config{Control: DefaultControl, Sandbox: true} }

// Fields are the daemon's own.
var Fields = Table[Config]{{
	Name: "control", Of: func(c *Config) any { return &c.Control }, Flag: "control", Help: "path of the control socket",
	check: func(c *Config, m place) {
		m.require(absolute(c.Control, maxControl), "%q is not an absolute path of at most %d bytes", c.Control, maxControl)
	},
}, {
	Name: "metrics_listen", Of: func(c *Config) any { return &c.MetricsListen }, Flag: "metrics-listen",
	Help: "also serve probes and metrics over TCP, on this `address`, such as 127.0.0.1:9471",
	check: func(c *Config, m place) {
		m.require(c.MetricsListen == "" || validListen(c.MetricsListen), "%q is not an IP address, or localhost, with a "+
			"port, such as 127.0.0.1:9471 or [::1]:9471; without an address, as in :9471, it stands for all addresses "+
			"of the host", c.MetricsListen)
	},
}, {
	Name: "sandbox", Of: func(c *Config) any { return &c.Sandbox },
	Flag: "sandbox", Help: "drop all privileges that the configuration does not need",
}, {
	Name: "lend", Of: func(c *Config) any { return &c.Lend }, Live: true,
	Help: "lend interfaces to network namespaces at run time, and keep the privileges for that",
}, {
	Name: "devices", Of: func(c *Config) any { return &c.Devices }, Live: true, Help: "list of HCAs",
	check: func(c *Config, m place) {
		m.require(len(c.Devices) > 0, "none configured; add one, such as {underlay: eth0}")
	},
}, {
	Name: "interfaces", Of: func(c *Config) any { return &c.Interfaces }, Live: true, Help: "list of interfaces",
	check: func(c *Config, m place) {
		m.require(len(c.Interfaces) > 0 || c.Lend, "none configured; add one, or set lend")
	},
}}

// Single returns the configuration of one interface on one device, with the daemon's settings of own. The device has
// the name of its HCA. If its P_Key table is configured, it contains only the interface's P_Key.
func Single(own Config, d Device, f Interface) *Config {
	d.Name, f.Device = d.HCA, d.HCA
	if lookUp(d.HCA).pkeys {
		d.PKeys = []hca.PKey{f.PKey}
	}
	own.Devices, own.Interfaces = []Device{d}, []Interface{f}
	return &own
}
