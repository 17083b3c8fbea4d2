package config

import (
	"cmp"
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

// Mistake is one mistake in a configuration.
type Mistake struct {
	File  string // empty if the configuration does not come from a file
	Line  int
	Field string // such as interfaces[0].mtu; empty: the file as a whole
	Text  string
}

func (m *Mistake) Error() string {
	where := m.Field
	if m.File != "" {
		where = strings.TrimSuffix(fmt.Sprintf("%s:%d: %s", m.File, m.Line, m.Field), ": ")
	}
	return where + ": " + m.Text
}

// Mistakes are all mistakes in a configuration.
type Mistakes []*Mistake

func (ms Mistakes) Error() string {
	var lines []string
	for _, m := range ms {
		lines = append(lines, m.Error())
	}
	return strings.Join(lines, "\n")
}

func (ms *Mistakes) add(field, format string, args ...any) {
	*ms = append(*ms, &Mistake{Field: field, Text: fmt.Sprintf(format, args...)})
}

// within requires a value of a field to be from least to most.
func within[T cmp.Ordered](ms *Mistakes, field string, value, least, most T) {
	if value < least || value > most {
		ms.add(field, "%v is outside of %v to %v", value, least, most)
	}
}

// Validate returns the [Mistakes] in c.
func (c *Config) Validate() error {
	if ms := c.mistakes(); len(ms) > 0 {
		return ms
	}
	return nil
}

func (c *Config) mistakes() (ms Mistakes) {
	if !filepath.IsAbs(c.Control) || len(c.Control) > maxControl || strings.Contains(c.Control, "\x00") {
		ms.add("control", "%q is not an absolute path of at most %d bytes", c.Control, maxControl)
	}
	names, underlays, hcas := map[string]bool{}, map[string]string{}, map[string]string{}
	for i := range c.Devices {
		d, at := &c.Devices[i], fmt.Sprintf("devices[%d]", i)
		d.check(at, &ms)
		if names[d.Name] {
			ms.add(at+".name", "another device is named %q", d.Name)
		}
		names[d.Name] = true
		if d.Coordinator != "" && filepath.Clean(d.Coordinator) == filepath.Clean(c.Control) {
			ms.add(at+".coordinator", "%q is the control socket", d.Coordinator)
		}
		if d.HCA != SoftHCA {
			if other, taken := hcas[d.HCA]; taken {
				ms.add(at+".device", "device %q uses this HCA already; put its interfaces on that device", other)
			}
			hcas[d.HCA] = d.Name
			continue
		}
		if other, taken := underlays[d.Underlay]; taken {
			ms.add(at+".underlay", "device %q uses this netdev already, and UDP port 4791 can be bound only once on it", other)
		}
		underlays[d.Underlay] = d.Name
		if d.Underlay != "" && slices.ContainsFunc(c.Interfaces, func(f Interface) bool { return f.Name == d.Underlay }) {
			ms.add(at+".underlay", "%s is an interface of this daemon, which cannot use itself as its underlay; name the netdev that leads to the other hosts", d.Underlay)
		}
	}
	if len(c.Interfaces) == 0 {
		ms.add("interfaces", "none: configure at least one")
	}
	clear(names)
	for i := range c.Interfaces {
		f, at := &c.Interfaces[i], fmt.Sprintf("interfaces[%d]", i)
		f.check(at, c.Devices, &ms)
		if names[f.Name] {
			ms.add(at+".name", "another interface is named %q", f.Name)
		}
		names[f.Name] = true
	}
	return ms
}

func (d *Device) check(at string, ms *Mistakes) {
	if !validHCA(d.HCA) {
		ms.add(at+".device", "%q is neither %s nor the name of an RDMA device (1 to %d characters, no slash or space)", d.HCA, SoftHCA, maxHCALen)
	}
	if !slices.Contains(Resets, d.Reset) {
		ms.add(at+".reset", "%q is not one of %s", d.Reset, strings.Trim(fmt.Sprint(Resets), "[]"))
	}
	if d.HCA == SoftHCA {
		if d.Reset != ResetNone {
			ms.add(at+".reset", "applies only to real HCAs")
		}
		d.Soft.check(at, ms)
	} else {
		for _, f := range []struct {
			field string
			set   bool
		}{
			{"underlay", d.Underlay != ""},
			{"pkeys", d.PKeys != nil},
			{"standard_mtu", d.StandardMTU},
			{"peers", d.Peers != nil},
			{"known_peers_only", d.KnownPeersOnly},
		} {
			if f.set {
				ms.add(at+"."+f.field, "applies only to the software HCA")
			}
		}
	}
	if d.Coordinator != "" && (!filepath.IsAbs(d.Coordinator) || strings.Contains(d.Coordinator, "\x00")) {
		ms.add(at+".coordinator", "%q is not the absolute path of a directory", d.Coordinator)
	}
	within(ms, at+".grace", d.Grace, minGrace, maxGrace)
	within(ms, at+".give_up_after", d.GiveUpAfter, minGiveUp, maxGiveUp)
}

func (s *Soft) check(at string, ms *Mistakes) {
	if s.Underlay != "" && !validNetdev(s.Underlay) {
		ms.add(at+".underlay", "%q is not a netdev's name (1 to %d characters, no slash, colon or space)", s.Underlay, maxNameLen)
	}
	if n := len(s.table()); n == 0 || n > maxPKeys {
		ms.add(at+".pkeys", "needs 1 to %d P_Keys", maxPKeys)
	}
	if len(s.Peers) > maxPeers {
		ms.add(at+".peers", "at most %d", maxPeers)
	}
	for _, p := range s.Peers {
		if addr, err := netip.ParseAddr(p); err != nil && !validHost(p) {
			ms.add(at+".peers", "%q is neither an address nor a DNS name", p)
		} else if err == nil {
			if err := soft.CheckPeer(addr, s.Underlay); err != nil {
				ms.add(at+".peers", "%s cannot be a peer: %v", p, err)
			}
		}
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

func (f *Interface) check(at string, devices []Device, ms *Mistakes) {
	if !validNetdev(f.Name) || strings.Contains(f.Name, "%") { // the kernel replaces %d by a number
		ms.add(at+".name", "%q is not an interface's name (1 to %d characters, no slash, colon, percent or space)", f.Name, maxNameLen)
	}
	if f.Port == 0 {
		ms.add(at+".port", "ports are numbered from 1")
	}
	if f.PKey&^hca.PKeyMembership == 0 {
		ms.add(at+".pkey", "0x%04x is not a P_Key (its lower 15 bits must not be zero)", uint16(f.PKey))
	}
	if a, err := netip.ParseAddr(f.GID); f.GID != "" && (err != nil || a.Zone() != "" || a.IsMulticast() || a.IsUnspecified()) {
		ms.add(at+".gid", "%q is not the IPv4 or IPv6 address of a host, without prefix length and zone", f.GID)
	}
	if f.GIDIndex != nil {
		within(ms, at+".gid_index", *f.GIDIndex, 0, maxGIDIndex)
		if f.GID != "" {
			ms.add(at+".gid_index", "cannot be combined with gid")
		}
	}
	if f.MTU != 0 {
		within(ms, at+".mtu", f.MTU, minMTU, ipoib.MaxMTU)
	}
	within(ms, at+".send_wrs", f.SendWRs, ud.MinTxSlots, maxQueueWRs)
	within(ms, at+".recv_wrs", f.RecvWRs, ud.MinRxSlots, maxQueueWRs)

	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == f.Device })
	if i < 0 {
		ms.add(at+".device", "no device %q is configured", f.Device)
		return
	}
	if d := &devices[i]; d.HCA == SoftHCA {
		if !slices.ContainsFunc(d.table(), f.PKey.Match) {
			ms.add(at+".pkey", "0x%04x is not among the pkeys of device %q", uint16(f.PKey), d.Name)
		}
		if f.Port > 1 {
			ms.add(at+".port", "device %q is the software HCA, which has only port 1", d.Name)
		}
	}
}

// TakesHCA reports whether Device.HCA can be the name of this RDMA device.
func TakesHCA(name string) bool { return name != SoftHCA && validHCA(name) }

// validHCA reports whether s can be the name of a directory of sysfs.
func validHCA(s string) bool {
	return s != "" && len(s) <= maxHCALen && s != "." && s != ".." && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}

// validNetdev follows dev_valid_name of the kernel (net/core/dev.c).
func validNetdev(s string) bool {
	return s != "" && len(s) <= maxNameLen && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

// validHost reports whether s can be a DNS name.
func validHost(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, "0123456789.") != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
