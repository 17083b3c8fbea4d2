package config

import (
	"cmp"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Limits and defaults.
const (
	DefaultControl = "/run/ipoibd/control.sock"
	// DefaultCoordinator is not that of the software HCA, which no other process uses.
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

// SoftHCA is what Device.HCA is for the software HCA.
const SoftHCA = "soft"

// Device is an HCA: the software HCA on a netdev, or one that the kernel has.
type Device struct {
	Name string `yaml:"name"`   // for people and for Interface.Device
	HCA  string `yaml:"device"` // SoftHCA, or the name of an RDMA device, such as mlx5_0
	Soft        // settings of the software HCA alone
	// Reset is how a real HCA is reset.
	Reset Reset `yaml:"reset"`
	// Coordinator is the directory of the locks by which daemons share the device; empty:
	// no other process uses it.
	Coordinator string        `yaml:"coordinator"`
	Grace       time.Duration `yaml:"grace"`         // that a reset of the device leaves to its users
	GiveUpAfter time.Duration `yaml:"give_up_after"` // of waiting for a device that is gone
	// AllowOtherDevice takes another device for the one that is gone.
	AllowOtherDevice bool `yaml:"allow_other_device"`
}

// Soft are the settings of a software HCA. Real ones have netdev, P_Keys and MTU
// of their own, and multicast.
type Soft struct {
	Underlay string     `yaml:"underlay"` // netdev; empty: the one of the default route
	PKeys    []hca.PKey `yaml:"pkeys"`    // nil: the default one
	// StandardMTU keeps to the MTU steps of InfiniBand, as real HCAs need it.
	StandardMTU bool `yaml:"standard_mtu"`
	// Peers, addresses or DNS names, take multicast by replication; empty: IP
	// multicast.
	Peers          []string `yaml:"peers"`
	KnownPeersOnly bool     `yaml:"known_peers_only"` // drop what comes from any other address
}

// IsSoft reports whether the device is the software HCA.
func (d *Device) IsSoft() bool { return d.HCA == SoftHCA }

// Reset is how a real HCA is reset.
type Reset string

// Means of reset, each with what it does to others that use the device or, of the
// last two, its netdevs: all of it is gone for a moment, or for good.
const (
	ResetNone   Reset = "none"   // open it anew, no more
	ResetLink   Reset = "link"   // delete a Soft-RoCE device and add it again
	ResetDriver Reset = "driver" // take the PCI function from its driver and give it back
	ResetPCI    Reset = "pci"    // likewise, and reset the function meanwhile
)

var resets = []Reset{ResetNone, ResetLink, ResetDriver, ResetPCI}

// Interface is one ib0.
type Interface struct {
	Name   string   `yaml:"name"`
	Device string   `yaml:"device"`
	Port   uint8    `yaml:"port"`
	PKey   hca.PKey `yaml:"pkey"`
	// GID and GIDIndex name the GID to use, by its address or by its place in the
	// port's table; without either (empty, nil) it is chosen by rule.
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

// Single returns the configuration of one interface on one device, which has the name of
// its HCA. The software HCA has the interface's P_Key in its table, and no other.
func Single(control string, d Device, f Interface) *Config {
	d.Name, f.Device = d.HCA, d.HCA
	if d.IsSoft() {
		d.PKeys = []hca.PKey{f.PKey}
	}
	return &Config{Control: control, Devices: []Device{d}, Interfaces: []Interface{f}}
}

// complete fills in what follows from the rest: a device without a name has that
// of its HCA, an interface without a device is on the only one.
func (c *Config) complete() {
	for i := range c.Devices {
		d := &c.Devices[i]
		d.Name = cmp.Or(d.Name, d.HCA)
	}
	only := DefaultDevice
	if len(c.Devices) == 1 {
		only = c.Devices[0].Name
	}
	for i := range c.Interfaces {
		c.Interfaces[i].Device = cmp.Or(c.Interfaces[i].Device, only)
	}
}
