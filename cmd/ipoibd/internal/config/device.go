package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
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
	text  string                                // the kind in messages
	takes func(name string) bool                // reports whether Device.HCA can have this value
	claim func(d *Device) (field, value string) // what only one device can use
	clash string                                // the mistake if two devices do
	ports uint8                                 // how many ports it has; 0: only the open HCA reports that
	pkeys bool                                  // Device.PKeys is its P_Key table

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

// Device is an HCA: the software HCA on a netdev, or an RDMA device of the kernel. [DeviceFields] describes its
// fields.
type Device struct {
	Name             string        `json:"name"`
	HCA              string        `json:"device"` // SoftHCA, or the name of an RDMA device
	Soft                           // settings for the software HCA only
	Reset            Reset         `json:"reset"`
	Force            bool          `json:"force"`
	Coordinator      string        `json:"coordinator"`
	Grace            time.Duration `json:"grace"`
	GiveUpAfter      time.Duration `json:"give_up_after"`
	AllowOtherDevice bool          `json:"allow_other_device"`
}

// Soft has the settings for a software HCA. A real one has its own netdev, P_Keys, MTU
// and multicast.
type Soft struct {
	Underlay       string     `json:"underlay"` // empty: the netdev of the default route
	PKeys          []hca.PKey `json:"pkeys"`    // nil: the default P_Key
	StandardMTU    bool       `json:"standard_mtu"`
	Peers          []string   `json:"peers"` // none: multicast travels by IP multicast
	KnownPeersOnly bool       `json:"known_peers_only"`
	Lanes          int        `json:"lanes"`
	FastPath       bool       `json:"fast_path"`
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

// check adds the mistakes in single fields, and the fields that the kind of HCA does not have.
func (d *Device) check(at string, ms *Mistakes) {
	own, fresh := KindOf(d.HCA), NewDevice()
	for _, f := range DeviceFields {
		m := place{at + "." + f.Name, ms}
		if f.Only == "" || f.Only == own {
			f.judge(d, m)
		} else if own != "" { // without a kind, the HCA is the mistake
			i := slices.IndexFunc(kinds, func(k kind) bool { return k.kind == f.Only })
			unset := reflect.ValueOf(f.Of(d)).Elem().IsZero() || reflect.DeepEqual(f.Of(d), f.Of(&fresh))
			m.require(unset, "applies only to %s", kinds[i].text)
		}
	}
}

// DeviceFields are the fields of a device.
var DeviceFields = Table[Device]{{
	Name: "name", Of: func(d *Device) any { return &d.Name },
	Help: "name in logs, in commands and in interfaces", Default: "the value of `device`",
}, {
	Name: "device", Of: func(d *Device) any { return &d.HCA },
	Flag: "device", Help: "soft, or another HCA that 'ipoibd devices' lists",
	check: func(d *Device, m place) {
		m.require(KindOf(d.HCA) != "", "%q is neither %s nor the name of an RDMA device "+
			"(1 to %d characters, no slash or space)", d.HCA, SoftHCA, maxHCALen)
	},
}, {
	Name: "underlay", Of: func(d *Device) any { return &d.Underlay }, Only: KindSoft,
	Flag: "underlay", Help: "netdev of the software HCA", Default: "the netdev of the default route",
	check: func(d *Device, m place) {
		m.require(d.Underlay == "" || validNetdev(d.Underlay), "%q is not a netdev's name "+
			"(1 to %d characters, no slash, colon or space)", d.Underlay, maxNameLen)
	},
}, {
	Name: "pkeys", Of: func(d *Device) any { return &d.PKeys }, Only: KindSoft, Live: true,
	Help: "P_Key table", Default: "`[0xffff]`",
	check: func(d *Device, m place) {
		n := len(d.PKeyTable())
		m.require(n >= 1 && n <= maxPKeys, "needs 1 to %d P_Keys", maxPKeys)
	},
}, {
	Name: "standard_mtu", Of: func(d *Device) any { return &d.StandardMTU }, Only: KindSoft, Flag: "standard-mtu",
	Help: "use only standard InfiniBand MTUs, for interoperability with real HCAs",
}, {
	Name: "peers", Of: func(d *Device) any { return &d.Peers }, Only: KindSoft, Live: true, Flag: "peer",
	Help:  "address or DNS name of a peer; multicast is replicated to the peers",
	check: checkPeers,
}, {
	Name: "known_peers_only", Of: func(d *Device) any { return &d.KnownPeersOnly }, Only: KindSoft,
	Flag: "known-peers-only", Help: "drop packets that do not come from a peer's address",
	check: func(d *Device, m place) {
		m.require(!d.KnownPeersOnly || len(d.Peers) > 0, "needs peers: without any, all packets would be dropped")
	},
}, {
	Name: "lanes", Of: func(d *Device) any { return &d.Lanes }, Only: KindSoft, Flag: "lanes",
	Help: "number of lanes, each with its own sockets, queues and goroutines: 1, 2, 4 or 8",
	check: func(d *Device, m place) {
		n := d.Lanes
		m.require(n >= 1 && n <= MaxLanes && n&(n-1) == 0, "%d is not 1, 2, 4 or 8", n)
	},
}, {
	Name: "fast_path", Of: func(d *Device) any { return &d.FastPath }, Only: KindSoft, Flag: "fast-path",
	Help: "use eBPF programs to carry small frames in the kernel, bypassing the daemon",
	check: func(d *Device, m place) {
		m.require(!d.FastPath || !d.KnownPeersOnly, "cannot be combined with known_peers_only, which it would bypass")
	},
}, {
	Name: "reset", Of: func(d *Device) any { return &d.Reset }, Only: KindRDMA,
	Flag: "reset", Help: "how a real HCA is reset: none, link, driver or pci",
	check: func(d *Device, m place) {
		all := strings.Trim(fmt.Sprint(Resets), "[]")
		m.require(slices.Contains(Resets, d.Reset), "%q is not one of %s", d.Reset, all)
	},
}, {
	Name: "force", Of: func(d *Device) any { return &d.Force }, Only: KindRDMA, Flag: "force",
	Help: "reset a real HCA even while other programs have it open, which then lose it",
}, {
	Name: "coordinator", Of: func(d *Device) any { return &d.Coordinator },
	Help: "directory of the locks by which daemons share a real HCA",
	check: func(d *Device, m place) {
		valid := d.Coordinator == "" || absolute(d.Coordinator, math.MaxInt)
		m.require(valid, "%q is not the absolute path of a directory", d.Coordinator)
	},
}, {
	Name: "grace", Of: func(d *Device) any { return &d.Grace },
	Help:  "how long a reset waits for the users of the device",
	check: func(d *Device, m place) { within(m, d.Grace, minGrace, maxGrace) },
}, {
	Name: "give_up_after", Of: func(d *Device) any { return &d.GiveUpAfter },
	Help:  "how long to wait for a device that is gone",
	check: func(d *Device, m place) { within(m, d.GiveUpAfter, minGiveUp, maxGiveUp) },
}, {
	Name: "allow_other_device", Of: func(d *Device) any { return &d.AllowOtherDevice },
	Help: "accept another device in place of the one that is gone",
}}

func checkPeers(d *Device, m place) {
	m.require(len(d.Peers) <= maxPeers, "%d peers; at most %d are allowed", len(d.Peers), maxPeers)
	for i, p := range d.Peers {
		addr, err := netip.ParseAddr(p)
		if err != nil {
			m.at(i).require(validHost(p), "%q is neither an address nor a DNS name", p)
			continue
		}
		err = soft.CheckPeer(addr, d.Underlay)
		m.at(i).require(err == nil, "%s cannot be a peer: %v", p, err)
	}
}

// PKeyTable returns the P_Key table.
func (s *Soft) PKeyTable() []hca.PKey {
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
