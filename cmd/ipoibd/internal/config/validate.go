package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

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
		ms.add(field, "%v is out of range (%v to %v)", value, least, most)
	}
}

// Validate fills in the defaults that depend on the device of an interface, and returns the
// [Mistakes] in c.
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
	names, claims := map[string]bool{}, map[[2]string]string{}
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
		if k := lookUp(d.HCA); k.claim != nil {
			field, value := k.claim(d)
			if other, taken := claims[[2]string{field, value}]; taken {
				ms.add(at+"."+field, k.clash, other)
			}
			claims[[2]string{field, value}] = d.Name
		}
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

// check also fills in the defaults that depend on the device.
func (f *Interface) check(at string, devices []Device, ms *Mistakes) {
	if !validNetdev(f.Name) || strings.Contains(f.Name, "%") { // the kernel replaces %d by a number
		ms.add(at+".name", "%q is not an interface's name (1 to %d characters, no slash, colon, percent or space)", f.Name, maxNameLen)
	}
	if f.Port == 0 {
		ms.add(at+".port", "ports are numbered from 1")
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
	assigned(ms, at+".addresses", f.Addresses, func(s string) error { _, err := ParseAddress(s); return err })
	assigned(ms, at+".routes", f.Routes, func(s string) error { _, _, err := ParseRoute(s); return err })

	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == f.Device })
	if i < 0 {
		ms.add(at+".device", "no device %q is configured", f.Device)
		return
	}
	d := &devices[i]
	k := lookUp(d.HCA)
	f.Lanes = d.Lanes
	f.SendWRs, f.RecvWRs = cmp.Or(f.SendWRs, k.sendWRs), cmp.Or(f.RecvWRs, k.recvWRs)
	within(ms, at+".send_wrs", f.SendWRs, ud.MinTxSlots, maxQueueWRs)
	within(ms, at+".recv_wrs", f.RecvWRs, ud.MinRxSlots, maxQueueWRs)
	if k.pkeys && !slices.ContainsFunc(d.table(), f.PKey.Match) {
		ms.add(at+".pkey", "0x%04x is not among the pkeys of device %q", uint16(f.PKey), d.Name)
	}
	if k.ports != 0 && f.Port > k.ports {
		ms.add(at+".port", "device %q is %s, which has only port %d", d.Name, k.text, k.ports)
	}
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
