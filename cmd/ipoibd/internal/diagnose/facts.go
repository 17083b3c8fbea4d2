package diagnose

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
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
	NoTun      bool  // it is missing
	Devices    []Device
	Interfaces []Interface
	Netdevs    []Netdev
	// Neighbours are the kernel's neighbour tables, and NeighboursEarlier what they were before the
	// daemon was watched.
	Neighbours, NeighboursEarlier []NeighbourTable

	Drops []FirewallRule // that drop what the daemon should receive
	// Forwarding are chains of this host's firewall that drop what it forwards unless a rule accepts it. They see
	// what bridges forward too if BridgesFiltered.
	Forwarding      []FirewallChain
	BridgesFiltered bool   // net.bridge.bridge-nf-call-iptables
	Unforwarded     uint64 // IPv4 packets for other hosts that this one dropped while watched, since it does not forward
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

// Started reports whether there is a daemon, even if it does not answer this user.
func (f *Facts) Started() bool {
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

// Known reports whether the process could be examined.
func (p Process) Known() bool { return p.Files > 0 }

// Device is an HCA that is, or would be, used.
type Device struct {
	Name     string
	HCA      string
	Software bool
	Underlay string     // of the software HCA
	Unclear  error      // why there is no underlay
	Taken    *TakenPort // its UDP port is in use; only before a start
	// Trouble is why a real HCA cannot be used. Missing: it does not exist; Present are those that do.
	Trouble []string
	Missing bool
	Present []string
}

// TakenPort is a UDP port that is in use.
type TakenPort struct {
	Err     error
	Holders []Holder // empty: not known
	Module  string   // of the kernel, that may use it
}

// Interface is an ib0 that is, or would be, there.
type Interface struct {
	Name, Device string
	Addresses    []netip.Prefix // configured; not known of a running daemon
	EBPF         bool           // wanted; not known of a running daemon
	Claim        Claim          // only before a start
	Holders      []Holder       // other processes with a queue of it
}

// Claim says whether the name of an interface is available.
type Claim struct {
	Err     error // why not
	Foreign bool  // it belongs to an interface that ipoibd did not create
	Owned   bool  // another daemon serves it: process Owner, 0: unknown
	Owner   int
}

// Holder is a process that uses something.
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

// Netdev returns a netdev, or nil if it is not in this network namespace.
func (f *Facts) Netdev(name string) *Netdev {
	return first(f.Netdevs, func(n *Netdev) bool { return n.Name == name })
}

// first returns the first one of a list that is what is looked for, or nil.
func first[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

// underlayOf returns the underlay of a device, or nil if it is not in this network namespace.
func (f *Facts) underlayOf(device string) *Netdev {
	d := first(f.Devices, func(d *Device) bool { return d.Name == device })
	if d == nil {
		return nil
	}
	return f.Netdev(d.Underlay)
}

// status and earlier return the statuses of the daemon, or empty ones.
func (f *Facts) status() *report.Status  { return cmp.Or(f.Status, &report.Status{}) }
func (f *Facts) earlier() *report.Status { return cmp.Or(f.Earlier, &report.Status{}) }

// reported returns what the daemon reports of a device, or nil.
func (f *Facts) reported(device string) *report.Device {
	return first(f.status().Devices, func(d *report.Device) bool { return d.Name == device })
}

// FirewallRule is a rule of nftables.
type FirewallRule struct {
	Family, Table, Chain, Handle string
	Text                         string
}

// FirewallChain is a chain of nftables whose policy is to drop.
type FirewallChain struct {
	Family, Table, Chain string
	Text                 string // of its table
}

// NeighbourTable is a table of the kernel, which all network namespaces share.
type NeighbourTable struct {
	Name    string // arp_cache or ndisc_cache
	Entries int
	Limit   int    // gc_thresh3, in entries
	Fulls   uint64 // how often since the boot there was no room for an entry
}
