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

	"ipoibd/ud"
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

// Flag returns the flag of the field, or "".
func (m *Mistake) Flag() string {
	name, _, _ := strings.Cut(m.Field[strings.LastIndex(m.Field, ".")+1:], "[")
	return cmp.Or(Fields.flag(name), DeviceFields.flag(name), InterfaceFields.flag(name))
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

// place is where the mistakes in a field go.
type place struct {
	field string
	ms    *Mistakes
}

// at returns the place of an element of a list.
func (m place) at(i int) place { return place{fmt.Sprintf("%s[%d]", m.field, i), m.ms} }

func (m place) add(format string, args ...any) { m.ms.add(m.field, format, args...) }

// require adds a mistake unless ok.
func (m place) require(ok bool, format string, args ...any) {
	if !ok {
		m.add(format, args...)
	}
}

// within requires a value to be from least to most.
func within[T cmp.Ordered](m place, value, least, most T) {
	m.require(value >= least && value <= most, "%v is out of range (%v to %v)", value, least, most)
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
	for _, f := range Fields {
		f.judge(c, place{f.Name, &ms})
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

// check adds the mistakes in single fields, and in those that depend on the device, whose defaults it fills in.
func (f *Interface) check(at string, devices []Device, ms *Mistakes) {
	for _, field := range InterfaceFields {
		field.judge(f, place{at + "." + field.Name, ms})
	}
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == f.Device })
	if i < 0 {
		if len(devices) > 0 {
			ms.add(at+".device", "no device %q is configured; choose the name of one under devices", f.Device)
		}
		return
	}
	d := &devices[i]
	k := lookUp(d.HCA)
	f.SendWRs, f.RecvWRs = cmp.Or(f.SendWRs, k.sendWRs), cmp.Or(f.RecvWRs, k.recvWRs)
	within(place{at + ".send_wrs", ms}, f.SendWRs, ud.MinTxSlots, maxQueueWRs)
	within(place{at + ".recv_wrs", ms}, f.RecvWRs, ud.MinRxSlots, maxQueueWRs)
	if k.pkeys && !slices.ContainsFunc(d.PKeyTable(), f.PKey.Match) {
		ms.add(at+".pkey", "0x%04x is not among the pkeys of device %q", uint16(f.PKey), d.Name)
	}
	if k.ports != 0 && f.Port > k.ports {
		ms.add(at+".port", "device %q is %s, which has only port %d", d.Name, k.text, k.ports)
	}
}

// absolute reports whether a path is an absolute one of at most some bytes.
func absolute(path string, most int) bool {
	return filepath.IsAbs(path) && len(path) <= most && !strings.Contains(path, "\x00")
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
