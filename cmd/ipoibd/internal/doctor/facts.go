package doctor

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

// Facts are what is known about a machine and its daemon. The zero value of a fact is the
// healthy one, or means that it is not known.
type Facts struct {
	Version string // of this program

	// What 'ipoibd run' would do with the same flags, variables and file.
	Mistake          error // in them
	UnknownVariables []string

	Socket  Socket
	Service Service

	// Status is the status of the running daemon, and Earlier is what it was before it was watched
	// for the time Watched; nil: no daemon answers.
	Status, Earlier *report.Status
	Watched         time.Duration
	ClockStep       time.Duration // by which the clock was set while the daemon ran

	Process    Process
	Control    error // why the control socket cannot be created; only before a start
	Tun        error // of opening /dev/net/tun; only before a start
	Devices    []Device
	Interfaces []Interface
	Netdevs    []Netdev
	// Neighbours are the kernel's neighbour tables, and NeighboursEarlier what they were before the
	// daemon was watched.
	Neighbours, NeighboursEarlier []NeighbourTable

	Drops []FirewallRule // that drop what the daemon should receive
}

// SocketState is what is at the path of the control socket.
type SocketState uint8

// States of the control socket.
const (
	SocketAbsent  SocketState = iota
	SocketAnswers             // a daemon does
	SocketHangs               // a process listens, but does not answer
	SocketStale               // no process listens
	SocketDenied              // this user may not use it
	SocketBlocked             // there is something else
	SocketGarbage             // what answers is not a daemon
)

// Socket is the control socket.
type Socket struct {
	Path  string
	State SocketState
	Err   error
	// PID is that of the process that listens, 0: unknown; Stopped: it was stopped by a signal.
	PID     int
	Stopped bool
}

// started reports whether there is a daemon, even if it does not answer this user.
func (f *Facts) started() bool {
	return slices.Contains([]SocketState{SocketAnswers, SocketHangs, SocketDenied, SocketGarbage}, f.Socket.State)
}

// Service is ipoibd.service.
type Service struct {
	Active   string // ActiveState of systemd; empty: there is no such service
	Result   string
	Restarts string
}

// Process is the daemon, or this program if no daemon runs: a start by this user would have the
// same limits.
type Process struct {
	PID     int
	UID     int
	Caps    uint64 // effective capabilities, by number
	Memlock uint64 // limit of locked memory, bytes
	Files   uint64 // limit of open files; 0: the facts about the process are not known
}

// known reports whether the process could be examined.
func (p Process) known() bool { return p.Files > 0 }

// has reports whether the process has a capability.
func (p Process) has(capability int) bool { return p.Caps&(1<<capability) != 0 }

// Device is an HCA that is, or would be, used.
type Device struct {
	Name     string
	HCA      string
	Software bool
	Underlay string // of the software HCA
	Unclear  error  // why there is no underlay
	Bind     error  // of its UDP port; only before a start
	// Trouble is why a real HCA cannot be used. Missing: it does not exist; Present are those that do.
	Trouble []string
	Missing bool
	Present []string
}

// Interface is an ib0 that is, or would be, there.
type Interface struct {
	Name, Device string
	Addresses    []netip.Prefix // configured; not known of a running daemon
	EBPF         bool           // wanted; not known of a running daemon
	Available    error          // of its name; only before a start
	Holders      []Holder       // other processes with a queue of it
}

// Holder is a process that has a queue of an interface.
type Holder struct {
	PID  int
	Name string
}

// Netdev is a network interface of this network namespace.
type Netdev struct {
	Name      string
	MTU       int  // bytes
	Up        bool // administratively
	Carrier   bool
	Multicast bool
	Loopback  bool
	Master    string // the bridge or bond that it belongs to; empty: none
	Addrs     []Addr
}

// Addr is an address of a netdev.
type Addr struct {
	netip.Prefix
	Duplicate bool // the kernel has found another host with it
}

// global returns the addresses that are not link-local.
func (n *Netdev) global() (out []netip.Prefix) {
	for _, a := range n.Addrs {
		if !a.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix)
		}
	}
	return out
}

// netdev returns a netdev, or nil if it is not in this network namespace.
func (f *Facts) netdev(name string) *Netdev {
	if i := slices.IndexFunc(f.Netdevs, func(n Netdev) bool { return n.Name == name }); i >= 0 {
		return &f.Netdevs[i]
	}
	return nil
}

// FirewallRule is a rule of nftables.
type FirewallRule struct {
	Family, Table, Chain, Handle string
	Text                         string
}

// FromConfig returns the devices and interfaces of a configuration.
func FromConfig(cfg *config.Config) (devices []Device, ifaces []Interface) {
	for i := range cfg.Devices {
		d := &cfg.Devices[i]
		devices = append(devices, Device{Name: d.Name, HCA: d.HCA, Software: config.KindOf(d.HCA) == config.KindSoft, Underlay: d.Underlay})
	}
	for i := range cfg.Interfaces {
		c := &cfg.Interfaces[i]
		f := Interface{Name: c.Name, Device: c.Device, EBPF: c.EBPF}
		for _, text := range c.Addresses {
			if p, err := config.ParseAddress(text); err == nil {
				f.Addresses = append(f.Addresses, p)
			}
		}
		ifaces = append(ifaces, f)
	}
	return devices, ifaces
}

// FromStatus returns the devices and interfaces of a daemon.
func FromStatus(s *report.Status) (devices []Device, ifaces []Interface) {
	for i := range s.Devices {
		d := &s.Devices[i]
		devices = append(devices, Device{Name: d.Name, HCA: d.HCA, Software: config.KindOf(d.HCA) == config.KindSoft, Underlay: d.Underlay})
	}
	for i := range s.Interfaces {
		ifaces = append(ifaces, Interface{Name: s.Interfaces[i].Name, Device: s.Interfaces[i].Device})
	}
	return devices, ifaces
}

// reported returns the daemon's devices, each with what Earlier says of it, or nil.
func (f *Facts) reported() (out []traffic) {
	if f.Status == nil {
		return nil
	}
	for i := range f.Status.Devices {
		d := &f.Status.Devices[i]
		t := traffic{device: d, watched: f.Watched}
		if f.Earlier != nil {
			j := slices.IndexFunc(f.Earlier.Devices, func(e report.Device) bool { return e.Name == d.Name && e.Opens == d.Opens })
			if j >= 0 {
				t.earlier = &f.Earlier.Devices[j]
			}
		}
		for j := range f.Status.Interfaces {
			if x := &f.Status.Interfaces[j]; x.Device == d.Name {
				t.interfaces = append(t.interfaces, x)
			}
		}
		out = append(out, t)
	}
	return out
}

// before returns what Earlier says of an interface, or nil.
func (f *Facts) before(x *report.Interface) *report.Interface {
	if f.Earlier == nil {
		return nil
	}
	for i := range f.Earlier.Interfaces {
		if e := &f.Earlier.Interfaces[i]; e.Name == x.Name && e.Device == x.Device {
			return e
		}
	}
	return nil
}

// pkeys returns the P_Keys of the interfaces of a device.
func (t *traffic) pkeys() (out []hca.PKey) {
	for _, x := range t.interfaces {
		if x.QP != nil {
			out = append(out, x.QP.PKey)
		}
	}
	return out
}
