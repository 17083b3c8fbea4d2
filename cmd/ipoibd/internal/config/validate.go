package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

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
	ps = append(ps, c.deviceProblems()...)
	return append(ps, c.interfaceProblems()...)
}

func (c *Config) deviceProblems() (ps []problem) {
	names, used := map[string]bool{}, map[string]string{}
	for i := range c.Devices {
		d, at := &c.Devices[i], fmt.Sprintf("devices[%d]", i)
		ps = append(ps, d.problems(at)...)
		if names[d.Name] {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("device %q is named twice", d.Name)})
		}
		field, value, why := d.exclusive()
		key := field + " " + value
		if other, taken := used[key]; taken {
			ps = append(ps, problem{at + "." + field, fmt.Sprintf("device %q %s", other, why)})
		}
		if d.Coordinator != "" && filepath.Clean(d.Coordinator) == filepath.Clean(c.Control) {
			ps = append(ps, problem{at + ".coordinator", fmt.Sprintf("%q is the control socket", d.Coordinator)})
		}
		names[d.Name], used[key] = true, d.Name
	}
	return ps
}

func (c *Config) interfaceProblems() (ps []problem) {
	if len(c.Interfaces) == 0 {
		ps = append(ps, problem{"interfaces", "none: name at least one"})
	}
	names := map[string]bool{}
	for i := range c.Interfaces {
		f, at := &c.Interfaces[i], fmt.Sprintf("interfaces[%d]", i)
		ps = append(ps, f.problems(at)...)
		if names[f.Name] {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("interface %q is named twice", f.Name)})
		}
		ps = append(ps, c.fitProblems(f, at)...)
		names[f.Name] = true
	}
	return ps
}

// fitProblems are those of an interface with the devices.
func (c *Config) fitProblems(f *Interface, at string) (ps []problem) {
	for i := range c.Devices {
		if d := &c.Devices[i]; d.IsSoft() && d.Underlay == f.Name {
			ps = append(ps, problem{at + ".name", fmt.Sprintf("device %q has it as its underlay: the interface would carry itself", d.Name)})
		}
	}
	i := slices.IndexFunc(c.Devices, func(d Device) bool { return d.Name == f.Device })
	if i < 0 {
		return append(ps, problem{at + ".device", fmt.Sprintf("no device %q is configured", f.Device)})
	}
	d := &c.Devices[i]
	if d.IsSoft() && !slices.ContainsFunc(d.table(), f.PKey.Match) {
		ps = append(ps, problem{at + ".pkey", fmt.Sprintf("0x%04x is not among the pkeys of device %q", uint16(f.PKey), d.Name)})
	}
	if d.IsSoft() && f.Port > 1 {
		ps = append(ps, problem{at + ".port", fmt.Sprintf("device %q is the software HCA, which has port 1 alone", d.Name)})
	}
	return ps
}

// table is the P_Key table.
func (s *Soft) table() []hca.PKey {
	if s.PKeys == nil {
		return []hca.PKey{hca.PKeyDefault}
	}
	return s.PKeys
}

// exclusive is the field whose value no other device may have, and why.
func (d *Device) exclusive() (field, value, why string) {
	if d.IsSoft() {
		return "underlay", d.Underlay, "uses this netdev already: UDP port 4791 can be bound once on it"
	}
	return "device", d.HCA, "uses this HCA already: its interfaces can be on that one"
}

func (d *Device) problems(at string) (ps []problem) {
	if !validHCA(d.HCA) {
		ps = append(ps, problem{at + ".device", fmt.Sprintf("%q is neither %s nor the name of an RDMA device (1 to %d characters, no slash or space)", d.HCA, SoftHCA, maxHCALen)})
	}
	if !slices.Contains(resets, d.Reset) {
		ps = append(ps, problem{at + ".reset", fmt.Sprintf("%q is not one of none, link, driver, pci", d.Reset)})
	}
	if d.IsSoft() {
		ps = append(ps, d.Soft.problems(at)...)
		if d.Reset != ResetNone {
			ps = append(ps, problem{at + ".reset", "is for real HCAs: the software HCA is reset by itself"})
		}
	} else {
		ps = append(ps, d.strays(at)...)
	}
	return append(ps, d.recoveryProblems(at)...)
}

func (s *Soft) problems(at string) (ps []problem) {
	if s.Underlay != "" && !validNetdev(s.Underlay) {
		ps = append(ps, problem{at + ".underlay", fmt.Sprintf("%q is not a netdev's name (1 to %d characters, no slash, colon or space)", s.Underlay, maxNameLen)})
	}
	if n := len(s.table()); n == 0 || n > maxPKeys {
		ps = append(ps, problem{at + ".pkeys", fmt.Sprintf("needs 1 to %d P_Keys", maxPKeys)})
	}
	if len(s.Peers) > maxPeers {
		ps = append(ps, problem{at + ".peers", fmt.Sprintf("at most %d", maxPeers)})
	}
	for _, p := range s.Peers {
		switch addr, err := netip.ParseAddr(p); {
		case err == nil:
			if err := soft.CheckPeer(addr, s.Underlay); err != nil {
				ps = append(ps, problem{at + ".peers", fmt.Sprintf("%s cannot be a peer: %v", p, err)})
			}
		case !validHost(p):
			ps = append(ps, problem{at + ".peers", fmt.Sprintf("%q is neither an address nor a DNS name", p)})
		}
	}
	if s.KnownPeersOnly && len(s.Peers) == 0 {
		ps = append(ps, problem{at + ".known_peers_only", "needs peers: without any, everything would be dropped"})
	}
	return ps
}

// strays are the settings of a software HCA that a real one was given.
func (s *Soft) strays(at string) (ps []problem) {
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"underlay", s.Underlay != ""},
		{"pkeys", s.PKeys != nil},
		{"standard_mtu", s.StandardMTU},
		{"peers", s.Peers != nil},
		{"known_peers_only", s.KnownPeersOnly},
	} {
		if f.set {
			ps = append(ps, problem{at + "." + f.field, "applies only to the software HCA"})
		}
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
	if f.GID != "" && !validGID(f.GID) {
		ps = append(ps, problem{at + ".gid", fmt.Sprintf("%q is not an address of one host, IPv4 or IPv6, without length or zone", f.GID)})
	}
	if i := f.GIDIndex; i != nil && (*i < 0 || *i > maxGIDIndex) {
		ps = append(ps, problem{at + ".gid_index", fmt.Sprintf("%d is outside of 0 to %d", *i, maxGIDIndex)})
	}
	if f.GIDIndex != nil && f.GID != "" {
		ps = append(ps, problem{at + ".gid_index", "excludes gid: both name the GID"})
	}
	if f.MTU != 0 && (f.MTU < minMTU || f.MTU > ipoib.MaxMTU) {
		ps = append(ps, problem{at + ".mtu", fmt.Sprintf("%d is outside of %d to %d", f.MTU, minMTU, ipoib.MaxMTU)})
	}
	for _, q := range []struct {
		field    string
		n, least int
	}{{"send_wrs", f.SendWRs, ud.MinTxSlots}, {"recv_wrs", f.RecvWRs, ud.MinRxSlots}} {
		if q.n < q.least || q.n > maxQueueWRs {
			ps = append(ps, problem{at + "." + q.field, fmt.Sprintf("%d is outside of %d to %d", q.n, q.least, maxQueueWRs)})
		}
	}
	return ps
}

func (d *Device) recoveryProblems(at string) (ps []problem) {
	if d.Coordinator != "" && (!filepath.IsAbs(d.Coordinator) || strings.Contains(d.Coordinator, "\x00")) {
		ps = append(ps, problem{at + ".coordinator", fmt.Sprintf("%q is not the absolute path of a directory", d.Coordinator)})
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

// TakesHCA reports whether Device.HCA can be the name of this RDMA device.
func TakesHCA(name string) bool { return name != SoftHCA && validHCA(name) }

// validHCA: what a folder of sysfs can be called.
func validHCA(s string) bool {
	return s != "" && len(s) <= maxHCALen && s != "." && s != ".." && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}

// validGID: an address that a port may have; the zone is the port's.
func validGID(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == "" && !a.IsMulticast() && !a.IsUnspecified()
}

// validNetdev follows dev_valid_name of the kernel (net/core/dev.c).
func validNetdev(s string) bool {
	return s != "" && len(s) <= maxNameLen && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

// validHost reports whether s can be a DNS name.
func validHost(s string) bool {
	ok := s != "" && len(s) <= 253 && strings.Trim(s, "0123456789.") != ""
	for _, r := range s {
		ok = ok && (r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}
	return ok
}
