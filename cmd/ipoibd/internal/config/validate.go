package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

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

// maxShown is the number of mistakes that a text lists: more than anyone makes by hand.
const maxShown = 50

// Mistakes are all mistakes in a configuration.
type Mistakes []*Mistake

func (ms Mistakes) Error() string {
	var lines []string
	for _, m := range ms[:min(len(ms), maxShown)] {
		lines = append(lines, m.Error())
	}
	if more := len(ms) - maxShown; more > 0 {
		lines = append(lines, fmt.Sprintf("%d more mistakes", more))
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
	if c.MetricsListen != "" && !validListen(c.MetricsListen) {
		ms.add("metrics_listen", "%q is not an IP address, or localhost, with a port, "+
			"such as 127.0.0.1:9471 or [::1]:9471; without an address, as in :9471, "+
			"it stands for all addresses of the host", c.MetricsListen)
	}
	if len(c.Devices) == 0 {
		ms.add("devices", "none configured; add one, such as {underlay: eth0}")
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
		ours := func(f Interface) bool { return f.Netns == "" && f.NetdevName() == d.Underlay }
		if d.Underlay != "" && slices.ContainsFunc(c.Interfaces, ours) {
			ms.add(at+".underlay", "%s is an interface of this daemon, which cannot use itself as its underlay; "+
				"name the netdev that leads to the other hosts", d.Underlay)
		}
	}
	if len(c.Interfaces) == 0 && !c.Lend {
		ms.add("interfaces", "none configured; add one, or set lend")
	}
	if len(c.Devices)+len(c.Interfaces) == 0 {
		ms.add("devices", "none configured; add one")
	}
	clear(names)
	clear(claims)
	for i := range c.Interfaces {
		f, at := &c.Interfaces[i], fmt.Sprintf("interfaces[%d]", i)
		f.check(at, c.Devices, &ms)
		if names[f.Name] {
			ms.add(at+".name", "another interface is named %q", f.Name)
		}
		names[f.Name] = true
		place := [2]string{f.Netns, f.NetdevName()}
		if other, taken := claims[place]; taken && other != f.Name {
			ms.add(at+".netdev", "%s is the interface %s already", f.NetdevName(), other)
		}
		claims[place] = f.Name
	}
	return ms
}

const notInterface = "%q is not an interface's name (1 to %d characters, no slash, colon, percent or space)"

// check also fills in the defaults that depend on the device.
func (f *Interface) check(at string, devices []Device, ms *Mistakes) {
	if !validNetdev(f.Name) || strings.Contains(f.Name, "%") { // the kernel replaces %d by a number
		ms.add(at+".name", notInterface, f.Name, maxNameLen)
	}
	if f.Netns != "" && (!filepath.IsAbs(f.Netns) || len(f.Netns) > maxPath || strings.Contains(f.Netns, "\x00")) {
		ms.add(at+".netns", "%.100q is not the absolute path of a network namespace", f.Netns)
	}
	if f.Netdev != "" && (!validNetdev(f.Netdev) || strings.Contains(f.Netdev, "%")) {
		ms.add(at+".netdev", notInterface, f.Netdev, maxNameLen)
	}
	if len(f.Owner) > maxOwner || strings.ContainsFunc(f.Owner, unicode.IsControl) {
		ms.add(at+".owner", "more than %d bytes, or control characters", maxOwner)
	}
	if f.Port == 0 {
		ms.add(at+".port", "ports are numbered from 1")
	}
	if a, err := netip.ParseAddr(f.GID); f.GID != "" &&
		(err != nil || a.Zone() != "" || a.IsMulticast() || a.IsUnspecified()) {
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
	assigned(ms, at+".addresses", f.Addresses, func(s string) (netip.Addr, error) {
		p, err := ParseAddress(s)
		return p.Addr(), err
	})
	if f.SourceCheck && len(f.Addresses) == 0 {
		ms.add(at+".source_check", "needs addresses: without any, every IP frame from the host would be dropped, "+
			"except those from its link-local address")
	}
	assigned(ms, at+".routes", f.Routes, func(s string) (netip.Prefix, error) {
		to, _, err := ParseRoute(s)
		return to, err
	})

	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == f.Device })
	if i < 0 {
		if len(devices) > 0 {
			ms.add(at+".device", "no device %q is configured; choose the name of one under devices", f.Device)
		}
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

// validListen reports whether s is host:port, the host an IP address, localhost, or empty. No
// other name is resolved.
func validListen(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return false
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "" || host == "localhost"
}

// validNetdev follows dev_valid_name of the kernel (net/core/dev.c).
func validNetdev(s string) bool {
	return s != "" && len(s) <= maxNameLen && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

// validHost reports whether s can be a DNS name.
func validHost(s string) bool {
	if s == "" || len(s) > 253 || strings.Trim(s, "0123456789.") == "" {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
