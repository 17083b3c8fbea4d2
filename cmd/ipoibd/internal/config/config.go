package config

import (
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Limits and defaults.
const (
	DefaultControl = "/run/ipoibd/control.sock"
	// DefaultCoordinator serves real HCAs: no other process uses a software HCA.
	DefaultCoordinator = "/run/ipoibd/reset"
	DefaultDevice      = SoftHCA
	DefaultName        = "ib0"
	DefaultSendWRs     = 512  // a few milliseconds at 1 Gb/s
	DefaultRecvWRs     = 2048 // a burst of 64 KiB segments from several peers

	maxNameLen  = 15  // IFNAMSIZ-1
	maxHCALen   = 63  // IB_DEVICE_NAME_MAX-1 (include/rdma/ib_verbs.h)
	maxControl  = 107 // sun_path of unix(7), less its final zero
	minMTU      = 68  // RFC 791
	maxQueueWRs = 16384
	maxPeers    = 4096
	maxPKeys    = 128
	maxGIDIndex = 255 // sgid_index of struct ibv_global_route (infiniband/verbs.h)

	minGrace  = 100 * time.Millisecond // closing takes a few milliseconds
	maxGrace  = time.Hour
	minGiveUp = time.Second
	maxGiveUp = 30 * 24 * time.Hour
)

// Config is everything the daemon runs. The tags are the names of the fields in a
// file.
type Config struct {
	Control    string      `yaml:"control"` // path of the control socket
	Devices    []Device    `yaml:"devices"`
	Interfaces []Interface `yaml:"interfaces"`
}

// SoftHCA is the value of Device.HCA for the software HCA.
const SoftHCA = "soft"

// Device is an HCA: the software HCA on a netdev, or an RDMA device of the kernel.
type Device struct {
	Name string `yaml:"name"`   // in logs, in commands and in Interface.Device
	HCA  string `yaml:"device"` // SoftHCA, or the name of an RDMA device, such as mlx5_0
	Soft        // settings for the software HCA only
	// Reset is how a real HCA is reset.
	Reset Reset `yaml:"reset"`
	// Coordinator is the directory of the locks by which daemons share the device; if it
	// is empty, no other process uses the device.
	Coordinator string        `yaml:"coordinator"`
	Grace       time.Duration `yaml:"grace"`         // how long a reset waits for the users of the device
	GiveUpAfter time.Duration `yaml:"give_up_after"` // how long to wait for a device that is gone
	// AllowOtherDevice accepts another device in place of the one that is gone.
	AllowOtherDevice bool `yaml:"allow_other_device"`
}

// Soft has the settings for a software HCA. A real one has its own netdev, P_Keys, MTU
// and multicast.
type Soft struct {
	Underlay string     `yaml:"underlay"` // netdev; empty: that of the default route
	PKeys    []hca.PKey `yaml:"pkeys"`    // nil: the default P_Key
	// StandardMTU allows only the MTUs of InfiniBand, which real HCAs need.
	StandardMTU bool `yaml:"standard_mtu"`
	// Peers are addresses or DNS names. Multicast is replicated to them; if there are
	// none, it travels by IP multicast.
	Peers          []string `yaml:"peers"`
	KnownPeersOnly bool     `yaml:"known_peers_only"` // drop packets that do not come from a peer's address
}

// Reset is how a real HCA is reset.
type Reset string

// Ways to reset a real HCA. All but ResetNone interrupt other users of the device; the
// last two remove and recreate its netdevs as well.
const (
	ResetNone   Reset = "none"   // only close and open it
	ResetLink   Reset = "link"   // delete a Soft-RoCE device and add it again
	ResetDriver Reset = "driver" // unbind the PCI function from its driver and bind it again
	ResetPCI    Reset = "pci"    // as ResetDriver, and reset the function in between
)

// Resets lists the ways to reset a real HCA.
var Resets = []Reset{ResetNone, ResetLink, ResetDriver, ResetPCI}

// Interface is one ib0.
type Interface struct {
	Name   string   `yaml:"name"`
	Device string   `yaml:"device"`
	Port   uint8    `yaml:"port"`
	PKey   hca.PKey `yaml:"pkey"`
	// GID and GIDIndex select the GID, by address or by its index in the port's table;
	// without either (empty, nil) the daemon selects it.
	GID      string `yaml:"gid"`
	GIDIndex *int   `yaml:"gid_index"`
	MTU      int    `yaml:"mtu"` // 0: the largest that the group allows
	SendWRs  int    `yaml:"send_wrs"`
	RecvWRs  int    `yaml:"recv_wrs"`
}

// NewDevice returns a device with its defaults.
func NewDevice() Device {
	return Device{
		Name: DefaultDevice, HCA: SoftHCA, Reset: ResetNone, Coordinator: DefaultCoordinator,
		Grace: qprecovery.DefaultGrace, GiveUpAfter: qprecovery.DefaultGiveUpAfter,
	}
}

// NewInterface returns an interface with its defaults.
func NewInterface() Interface {
	return Interface{
		Name: DefaultName, Device: DefaultDevice, Port: 1, PKey: hca.PKeyDefault,
		SendWRs: DefaultSendWRs, RecvWRs: DefaultRecvWRs,
	}
}

// Single returns the configuration of one interface on one device. The device has the
// name of its HCA. The P_Key table of a software HCA contains only the interface's P_Key.
func Single(control string, d Device, f Interface) *Config {
	d.Name, f.Device = d.HCA, d.HCA
	if d.HCA == SoftHCA {
		d.PKeys = []hca.PKey{f.PKey}
	}
	return &Config{Control: control, Devices: []Device{d}, Interfaces: []Interface{f}}
}
