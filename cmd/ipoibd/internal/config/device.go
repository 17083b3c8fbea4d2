package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/qprecovery"
)

// SoftHCA is the value of Device.HCA for the software HCA.
const SoftHCA = "soft"

// Kind is a kind of HCA. Package backend has a backend for each.
type Kind string

// Kinds of HCA.
const (
	KindSoft Kind = "soft" // the software HCA
	KindRDMA Kind = "rdma" // an RDMA device of the kernel
)

// kinds has what the configuration of each kind differs in. An HCA is of the first kind that
// takes its name; the last one takes almost any.
var kinds = []kind{
	{
		kind: KindSoft, text: "the software HCA",
		takes: func(name string) bool { return name == SoftHCA },
		claim: func(d *Device) (field, value string) { return "underlay", d.Underlay },
		clash: "device %q uses this netdev already, and a daemon can bind UDP port 4791 only once on it",
		check: func(d *Device, at string, ms *Mistakes) { d.Soft.check(at, ms) },
		ports: 1, pkeys: true,
		// A send completes at once. Received messages wait in the socket buffer, and are
		// copied to the receives when the daemon is ready to deliver them. Messages to the
		// interface itself do not wait, so there are as many receives as sends. Each
		// receive has room for 64 KiB, but only those that are used take memory.
		sendWRs: 128, recvWRs: 128,
	},
	{
		kind: KindRDMA, text: "real HCAs",
		takes: validHCA,
		claim: func(d *Device) (field, value string) { return "device", d.HCA },
		clash: "device %q uses this HCA already; put its interfaces on that device",
		// A few milliseconds at 1 Gb/s; a burst of 64 KiB segments from several peers.
		sendWRs: 512, recvWRs: 2048,
	},
}

// kind is a row of kinds.
type kind struct {
	kind  Kind
	text  string                                   // the kind in messages
	takes func(name string) bool                   // reports whether Device.HCA can have this value
	claim func(d *Device) (field, value string)    // what only one device can use
	clash string                                   // the mistake if two devices do
	check func(d *Device, at string, ms *Mistakes) // checks the settings that only this kind has; nil: nothing to check
	ports uint8                                    // how many ports it has; 0: only the open HCA reports that
	pkeys bool                                     // Device.PKeys is its P_Key table

	sendWRs, recvWRs int // default lengths of an interface's queues
}

// KindOf returns the kind of the HCA that has this name as its Device.HCA, or "" if there is
// none.
func KindOf(name string) Kind { return lookUp(name).kind }

// lookUp returns the row of the kind that takes a name, or the zero kind.
func lookUp(name string) kind {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.takes(name) }); i >= 0 {
		return kinds[i]
	}
	return kind{}
}

// Device is an HCA: the software HCA on a netdev, or an RDMA device of the kernel.
type Device struct {
	Name string `yaml:"name" json:"name"`     // in logs, in commands and in Interface.Device
	HCA  string `yaml:"device" json:"device"` // SoftHCA, or the name of an RDMA device, such as mlx5_0
	Soft        // settings for the software HCA only
	// Reset is how a real HCA is reset.
	Reset Reset `yaml:"reset" json:"reset"`
	// Force resets a real HCA even while other programs have it open.
	Force bool `yaml:"force" json:"force"`
	// Coordinator is the directory of the locks by which daemons share the device; if it
	// is empty, no other process uses the device.
	Coordinator string `yaml:"coordinator" json:"coordinator"`
	// Grace is how long a reset waits for the users of the device.
	Grace time.Duration `yaml:"grace" json:"grace"`
	// GiveUpAfter is how long to wait for a device that is gone.
	GiveUpAfter time.Duration `yaml:"give_up_after" json:"give_up_after"`
	// AllowOtherDevice accepts another device in place of the one that is gone.
	AllowOtherDevice bool `yaml:"allow_other_device" json:"allow_other_device"`
}

// Soft has the settings for a software HCA. A real one has its own netdev, P_Keys, MTU
// and multicast.
type Soft struct {
	Underlay string     `yaml:"underlay" json:"underlay"` // netdev; empty: the one of the default route
	PKeys    []hca.PKey `yaml:"pkeys" json:"pkeys"`       // nil: the default P_Key
	// StandardMTU allows only the MTUs of InfiniBand, which real HCAs need.
	StandardMTU bool `yaml:"standard_mtu" json:"standard_mtu"`
	// Peers are addresses or DNS names. Multicast is replicated to them; if there are
	// none, it travels by IP multicast.
	Peers []string `yaml:"peers" json:"peers"`
	// KnownPeersOnly drops packets that do not come from a peer's address.
	KnownPeersOnly bool `yaml:"known_peers_only" json:"known_peers_only"`
	// Lanes is the number of lanes of each of its interfaces: queues of the TAP and of the queue
	// pair, each with its own sockets and goroutines. It is 1, 2, 4 or 8.
	Lanes int `yaml:"lanes" json:"lanes"`
}

// Reset is how a real HCA is reset.
type Reset string

// Ways to reset a real HCA. All but ResetNone affect every user of the device: they wait until
// no other program has it open, unless [Device.Force] is set. The last two remove and recreate
// its netdevs as well.
const (
	ResetNone   Reset = "none"   // only close and open it
	ResetLink   Reset = "link"   // delete a Soft-RoCE device and add it again
	ResetDriver Reset = "driver" // unbind the PCI function from its driver and bind it again
	ResetPCI    Reset = "pci"    // as ResetDriver, and reset the function in between
)

// Resets lists the ways to reset a real HCA.
var Resets = []Reset{ResetNone, ResetLink, ResetDriver, ResetPCI}

// NewDevice returns a device with its defaults.
func NewDevice() Device {
	return Device{
		Name: DefaultDevice, HCA: SoftHCA, Soft: Soft{Lanes: 1}, Reset: ResetNone, Coordinator: DefaultCoordinator,
		Grace: qprecovery.DefaultGrace, GiveUpAfter: qprecovery.DefaultGiveUpAfter,
	}
}

// UnmarshalJSON decodes what another version has handed over, over the defaults.
func (d *Device) UnmarshalJSON(text []byte) error {
	type plain Device
	p := plain(NewDevice())
	err := json.Unmarshal(text, &p)
	*d = Device(p)
	return err
}

func (d *Device) check(at string, ms *Mistakes) {
	k := lookUp(d.HCA)
	if k.kind == "" {
		ms.add(at+".device", "%q is neither %s nor the name of an RDMA device (1 to %d characters, no slash or space)",
			d.HCA, SoftHCA, maxHCALen)
	}
	if !slices.Contains(Resets, d.Reset) {
		ms.add(at+".reset", "%q is not one of %s", d.Reset, strings.Trim(fmt.Sprint(Resets), "[]"))
	}
	for _, f := range []struct {
		field string
		set   bool
		only  Kind
	}{
		{"reset", d.Reset != ResetNone, KindRDMA},
		{"force", d.Force, KindRDMA},
		{"underlay", d.Underlay != "", KindSoft},
		{"pkeys", d.PKeys != nil, KindSoft},
		{"standard_mtu", d.StandardMTU, KindSoft},
		{"peers", d.Peers != nil, KindSoft},
		{"known_peers_only", d.KnownPeersOnly, KindSoft},
		{"lanes", d.Lanes > 1, KindSoft},
	} {
		if f.set && k.kind != "" && k.kind != f.only { // without a kind, the name is the mistake
			i := slices.IndexFunc(kinds, func(k kind) bool { return k.kind == f.only })
			ms.add(at+"."+f.field, "applies only to %s", kinds[i].text)
		}
	}
	if k.check != nil {
		k.check(d, at, ms)
	}
	if d.Coordinator != "" && (!filepath.IsAbs(d.Coordinator) || strings.Contains(d.Coordinator, "\x00")) {
		ms.add(at+".coordinator", "%q is not the absolute path of a directory", d.Coordinator)
	}
	within(ms, at+".grace", d.Grace, minGrace, maxGrace)
	within(ms, at+".give_up_after", d.GiveUpAfter, minGiveUp, maxGiveUp)
}

func (s *Soft) check(at string, ms *Mistakes) {
	if s.Underlay != "" && !validNetdev(s.Underlay) {
		ms.add(at+".underlay", "%q is not a netdev's name (1 to %d characters, no slash, colon or space)",
			s.Underlay, maxNameLen)
	}
	if n := len(s.table()); n == 0 || n > maxPKeys {
		ms.add(at+".pkeys", "needs 1 to %d P_Keys", maxPKeys)
	}
	if len(s.Peers) > maxPeers {
		ms.add(at+".peers", "%d peers; at most %d are allowed", len(s.Peers), maxPeers)
	}
	for i, p := range s.Peers {
		field := fmt.Sprintf("%s.peers[%d]", at, i)
		if addr, err := netip.ParseAddr(p); err != nil && !validHost(p) {
			ms.add(field, "%q is neither an address nor a DNS name", p)
		} else if err == nil {
			if err := soft.CheckPeer(addr, s.Underlay); err != nil {
				ms.add(field, "%s cannot be a peer: %v", p, err)
			}
		}
	}
	if n := s.Lanes; n < 1 || n > MaxLanes || n&(n-1) != 0 {
		ms.add(at+".lanes", "%d is not 1, 2, 4 or 8", n)
	}
	if s.KnownPeersOnly && len(s.Peers) == 0 {
		ms.add(at+".known_peers_only", "needs peers: without any, all packets would be dropped")
	}
}

// table returns the P_Key table.
func (s *Soft) table() []hca.PKey {
	if s.PKeys == nil {
		return []hca.PKey{hca.PKeyDefault}
	}
	return s.PKeys
}

// validHCA reports whether s can be the name of a directory of sysfs.
func validHCA(s string) bool {
	if s == "" || len(s) > maxHCALen || s == "." || s == ".." || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}
