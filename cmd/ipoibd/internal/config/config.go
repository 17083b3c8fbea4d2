package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Limits and defaults.
const (
	DefaultControl = "/run/ipoibd/control.sock"
	DefaultDevice  = "soft"
	DefaultName    = "ib0"
	DefaultSendWRs = 512  // a few milliseconds at 1 Gb/s
	DefaultRecvWRs = 2048 // a burst of 64 KiB segments from several peers

	maxNameLen  = 15   // IFNAMSIZ-1
	maxControl  = 107  // sun_path of unix(7), less its final zero
	minMTU      = 68   // RFC 791
	maxMTU      = 4092 // IB MTU 4096 less the IPoIB header
	maxQueueWRs = 16384
	maxPeers    = 4096
	maxPKeys    = 128

	minGrace  = 100 * time.Millisecond // closing takes a few milliseconds
	maxGrace  = time.Hour
	minGiveUp = time.Second
	maxGiveUp = 30 * 24 * time.Hour
)

// Config is everything the daemon runs.
type Config struct {
	Control    string // path of the control socket
	Devices    []Device
	Interfaces []Interface
}

// Device is a software HCA on a netdev.
type Device struct {
	Name     string
	Underlay string // netdev; empty: the one of the default route
	PKeys    []hca.PKey
	// StandardMTU keeps to the MTU steps of InfiniBand, as real HCAs need it.
	StandardMTU bool
	// Peers, addresses or DNS names, take multicast by replication; empty: IP
	// multicast.
	Peers          []string
	KnownPeersOnly bool // drop what comes from any other address
	// Coordinator is the socket of those who share the device; empty: nobody
	// else does.
	Coordinator string
	Grace       time.Duration // that a reset of the device leaves to its users
	GiveUpAfter time.Duration // of waiting for a device that is gone
	// AllowOtherDevice takes another device for the one that is gone.
	AllowOtherDevice bool
}

// Interface is one ib0.
type Interface struct {
	Name    string
	Device  string
	Port    uint8
	PKey    hca.PKey
	GID     string // address of the GID to use; empty: chosen by rule
	MTU     int    // 0: the largest that the group allows
	SendWRs int
	RecvWRs int
}

// NewDevice returns a device with its defaults.
func NewDevice() Device {
	return Device{
		Name: DefaultDevice, PKeys: []hca.PKey{hca.PKeyDefault},
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

// problem is one mistake: where, and what is wrong.
type problem struct{ field, text string }

// Validate reports every mistake in c, joined.
func (c *Config) Validate() error {
	var errs []error
	for _, p := range c.problems() {
		errs = append(errs, fmt.Errorf("%s: %s", p.field, p.text))
	}
	return errors.Join(errs...)
}

func (c *Config) problems() (ps []problem) {
	if !validSocket(c.Control) {
		ps = append(ps, problem{"control", fmt.Sprintf("%q is not an absolute path of at most %d bytes", c.Control, maxControl)})
	}
	sockets := map[string]string{filepath.Clean(c.Control): "is the control socket"}
	devices := map[string]*Device{}
	underlays := map[string]string{}
	for i := range c.Devices {
		d, at := &c.Devices[i], fmt.Sprintf("devices[%d]", i)
		ps = append(ps, d.problems(at)...)
		if devices[d.Name] != nil {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("device %q is named twice", d.Name)})
		}
		if other, taken := underlays[d.Underlay]; taken {
			ps = append(ps, problem{at + ".underlay", fmt.Sprintf("device %q uses this netdev already: UDP port 4791 can be bound once on it", other)})
		}
		socket := filepath.Clean(d.Coordinator)
		if taken := sockets[socket]; d.Coordinator != "" && taken != "" {
			ps = append(ps, problem{at + ".coordinator", fmt.Sprintf("%q %s", d.Coordinator, taken)})
		}
		sockets[socket] = fmt.Sprintf("is the coordinator of device %q", d.Name)
		devices[d.Name], underlays[d.Underlay] = d, d.Name
	}
	if len(c.Interfaces) == 0 {
		ps = append(ps, problem{"interfaces", "none: name at least one"})
	}
	names := map[string]bool{}
	for i, f := range c.Interfaces {
		at := fmt.Sprintf("interfaces[%d]", i)
		ps = append(ps, f.problems(at)...)
		if names[f.Name] {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("interface %q is named twice", f.Name)})
		}
		if d := underlays[f.Name]; d != "" {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("device %q has it as its underlay: the interface would carry itself", d)})
		}
		if d := devices[f.Device]; d == nil {
			ps = append(ps, problem{at + ".device", fmt.Sprintf("no device %q is configured", f.Device)})
		} else if !slices.ContainsFunc(d.PKeys, f.PKey.Match) {
			ps = append(ps, problem{at + ".pkey", fmt.Sprintf("0x%04x is not among the pkeys of device %q", uint16(f.PKey), d.Name)})
		}
		names[f.Name] = true
	}
	return ps
}

func (d *Device) problems(at string) (ps []problem) {
	if d.Name == "" {
		ps = append(ps, problem{at + ".name", "must not be empty"})
	}
	if d.Underlay != "" && !validNetdev(d.Underlay) {
		ps = append(ps, problem{at + ".underlay", fmt.Sprintf("%q is not a netdev's name (1 to %d characters, no slash, colon or space)", d.Underlay, maxNameLen)})
	}
	if len(d.PKeys) == 0 || len(d.PKeys) > maxPKeys {
		ps = append(ps, problem{at + ".pkeys", fmt.Sprintf("needs 1 to %d P_Keys", maxPKeys)})
	}
	ps = append(ps, d.recoveryProblems(at)...)
	if len(d.Peers) > maxPeers {
		ps = append(ps, problem{at + ".peers", fmt.Sprintf("at most %d", maxPeers)})
	}
	for _, p := range d.Peers {
		if !validHost(p) {
			ps = append(ps, problem{at + ".peers", fmt.Sprintf("%q is neither an address nor a DNS name", p)})
		}
	}
	if d.KnownPeersOnly && len(d.Peers) == 0 {
		ps = append(ps, problem{at + ".known_peers_only", "needs peers: without any, everything would be dropped"})
	}
	return ps
}

func (f *Interface) problems(at string) (ps []problem) {
	if !validNetdev(f.Name) || strings.Contains(f.Name, "%") { // the kernel takes it for a template
		ps = append(ps, problem{at + ".name", fmt.Sprintf("%q is not an interface's name (1 to %d characters, no slash, colon, percent or space)", f.Name, maxNameLen)})
	}
	if f.Port == 0 {
		ps = append(ps, problem{at + ".port", "ports are numbered from 1"})
	}
	if f.PKey&^hca.PKeyMembership == 0 {
		ps = append(ps, problem{at + ".pkey", fmt.Sprintf("0x%04x is not a P_Key (its lower 15 bits must not be zero)", uint16(f.PKey))})
	}
	if f.GID != "" {
		if _, err := netip.ParseAddr(f.GID); err != nil {
			ps = append(ps, problem{at + ".gid", fmt.Sprintf("%q is not an address", f.GID)})
		}
	}
	if f.MTU != 0 && (f.MTU < minMTU || f.MTU > maxMTU) {
		ps = append(ps, problem{at + ".mtu", fmt.Sprintf("%d is outside of %d to %d", f.MTU, minMTU, maxMTU)})
	}
	for _, q := range []struct {
		field string
		n     int
	}{{"send_wrs", f.SendWRs}, {"recv_wrs", f.RecvWRs}} {
		if q.n < 64 || q.n > maxQueueWRs {
			ps = append(ps, problem{at + "." + q.field, fmt.Sprintf("%d is outside of 64 to %d", q.n, maxQueueWRs)})
		}
	}
	return ps
}

func (d *Device) recoveryProblems(at string) (ps []problem) {
	if d.Coordinator != "" && !validSocket(d.Coordinator) {
		ps = append(ps, problem{at + ".coordinator", fmt.Sprintf("%q is not an absolute path of at most %d bytes", d.Coordinator, maxControl)})
	}
	if d.Grace < minGrace || d.Grace > maxGrace {
		ps = append(ps, problem{at + ".grace", fmt.Sprintf("%s is outside of %s to %s", d.Grace, minGrace, maxGrace)})
	}
	if d.GiveUpAfter < minGiveUp || d.GiveUpAfter > maxGiveUp {
		ps = append(ps, problem{at + ".give_up_after", fmt.Sprintf("%s is outside of %s to %s", d.GiveUpAfter, minGiveUp, maxGiveUp)})
	}
	return ps
}

// validSocket: a path that the kernel takes, and that is the same wherever the
// daemon was started.
func validSocket(s string) bool {
	return filepath.IsAbs(s) && len(s) <= maxControl && !strings.Contains(s, "\x00")
}

// validNetdev follows dev_valid_name of the kernel (net/core/dev.c).
func validNetdev(s string) bool {
	return s != "" && len(s) <= maxNameLen && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

func validHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	ok := s != "" && len(s) <= 253 && strings.Trim(s, "0123456789.") != ""
	for _, r := range s {
		ok = ok && (r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}
	return ok
}
