package diagnose

import (
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
)

// subject is a thing that a rule applies to, with what is known of it. Which fields are set depends on the
// function that listed it.
type subject struct {
	*Facts
	words
	name   string // of the finding's subject; empty: the host or the daemon
	device string // that it concerns; empty: all of them
	dev    string // the interface that it concerns; empty: all of the device

	hca    *Device             // that is, or would be, used
	iface  *Interface          // that is, or would be, there
	netdev *Netdev             // the underlay of hca, or the netdev of iface; nil: it is not here
	addr   Addr                // of netdev
	open   *report.Device      // as the daemon reports it
	ib     *report.Interface   // as the daemon reports it
	was    *report.Device      // the same opening of open, before it was watched; nil: not known
	ibs    []*report.Interface // of open
}

// subject returns a thing with its words: those that all have, and more.
func (f *Facts) subject(name, device string, more ...any) subject {
	s := subject{Facts: f, name: name, device: device, words: more}
	s.say("subject", name, "device", device, "control", f.Socket.Path, "watched", f.Watched)
	s.sayIf(f.Socket.PID != 0, "pid", f.Socket.PID)
	s.sayIf(f.Service.Active != "", "service", "ipoibd")
	return s
}

// restart is the command that starts the daemon again.
const restart = "systemctl restart {service} | kill {pid} && ipoibd run | ipoibd run"

// say adds words: names and their values, by turns.
func (s *subject) say(more ...any) { s.words = append(s.words, more...) }

// sayIf adds words if they are known, and returns whether they are.
func (s *subject) sayIf(known bool, more ...any) bool {
	if known {
		s.say(more...)
	}
	return known
}

// about gives the things that a function lists another name, by a template.
func about(name string, of func(*Facts) []subject) func(*Facts) []subject {
	return func(f *Facts) []subject {
		list := of(f)
		for i := range list {
			list[i].name = list[i].fill(name, plain)
		}
		return list
	}
}

// always is the predicate of a rule that applies only to things with the problem.
func always(*subject) bool { return true }

// host lists this host, which is also the daemon.
func host(f *Facts) []subject { return []subject{f.subject("", "")} }

// unstarted lists this host, unless there is a daemon.
func unstarted(f *Facts) []subject {
	if f.Started() {
		return nil
	}
	return host(f)
}

// daemon lists the daemon that answers.
func daemon(f *Facts) []subject {
	if f.Status == nil {
		return nil
	}
	return host(f)
}

func variables(f *Facts) (out []subject) {
	for _, name := range f.UnknownVariables {
		out = append(out, f.subject(name, ""))
	}
	return out
}

// hcas lists the devices, each by the name of its HCA.
func hcas(f *Facts) (out []subject) {
	for i := range f.Devices {
		s := f.subject(f.Devices[i].HCA, f.Devices[i].Name)
		s.hca = &f.Devices[i]
		out = append(out, s)
	}
	return out
}

// underlays lists the software HCAs whose underlay is known, each by its underlay.
func underlays(f *Facts) (out []subject) {
	for _, s := range hcas(f) {
		if s.hca.Software && s.hca.Underlay != "" {
			s.netdev, s.name = f.Netdev(s.hca.Underlay), s.hca.Underlay
			s.say("subject", s.name)
			out = append(out, s)
		}
	}
	return out
}

// hereUnderlays lists those of [underlays] that exist in this network namespace.
func hereUnderlays(f *Facts) []subject {
	return slices.DeleteFunc(underlays(f), func(s subject) bool { return s.netdev == nil })
}

// interfaces lists the interfaces of the configuration, or else of the daemon.
func interfaces(f *Facts) (out []subject) {
	for i := range f.Interfaces {
		x := &f.Interfaces[i]
		s := f.subject(x.Name, x.Device)
		s.dev, s.iface, s.netdev = x.Name, x, f.Netdev(x.Name)
		out = append(out, s)
	}
	return out
}

// hereInterfaces lists those of [interfaces] that exist in this network namespace.
func hereInterfaces(f *Facts) []subject {
	return slices.DeleteFunc(interfaces(f), func(s subject) bool { return s.netdev == nil })
}

// addresses lists the addresses of [hereInterfaces], each by its interface.
func addresses(f *Facts) (out []subject) {
	for _, x := range hereInterfaces(f) {
		for _, a := range x.netdev.Addrs {
			s := f.subject(x.name, x.device, "address", a.Prefix)
			s.dev, s.addr = x.dev, a
			out = append(out, s)
		}
	}
	return out
}

// devices lists the devices of the daemon.
func devices(f *Facts) (out []subject) {
	for i := range f.status().Devices {
		d := &f.Status.Devices[i]
		s := f.subject(d.Name, d.Name, "underlay", d.Underlay, "state", d.State, "reason", d.Reason)
		s.open = d
		s.say("since", d.Since.Local().Format(time.DateTime))
		s.sayIf(d.LastError != "", "error", d.LastError)
		if len(d.Peers) > 0 {
			s.say("peer", d.Peers[0], "peers", listed(d.Peers))
		}
		out = append(out, s)
	}
	return out
}

// openDevices lists those of [devices] that are open, with their interfaces and what they were before.
func openDevices(f *Facts) []subject {
	open := slices.DeleteFunc(devices(f), func(s subject) bool { return s.open.State != report.DeviceOpen })
	for i := range open {
		open[i].was, open[i].ibs = f.before(open[i].open), f.interfacesOf(open[i].open)
	}
	return open
}

// served lists the interfaces of the daemon.
func served(f *Facts) (out []subject) {
	for i := range f.status().Interfaces {
		x := &f.Status.Interfaces[i]
		s := f.subject(x.Name, x.Device, "state", x.State, "reason", x.Reason, "why", x.Because(), "mtu", x.MTU)
		s.dev, s.ib = x.Name, x
		out = append(out, s)
	}
	return out
}

// servedOrWanted lists the interfaces of the daemon, or without a daemon those of the configuration.
func servedOrWanted(f *Facts) []subject {
	if f.Status != nil {
		return served(f)
	}
	return interfaces(f)
}

// before returns the same opening of a device before it was watched, or nil.
func (f *Facts) before(d *report.Device) *report.Device {
	return first(f.earlier().Devices, func(e *report.Device) bool { return e.Name == d.Name && e.Opens == d.Opens })
}

// interfaceBefore returns an interface before it was watched, or nil.
func (f *Facts) interfaceBefore(x *report.Interface) *report.Interface {
	return first(f.earlier().Interfaces, func(e *report.Interface) bool {
		return e.Name == x.Name && e.Device == x.Device
	})
}

// interfacesOf returns the interfaces of a device.
func (f *Facts) interfacesOf(d *report.Device) (out []*report.Interface) {
	for i := range f.Status.Interfaces {
		if x := &f.Status.Interfaces[i]; x.Device == d.Name {
			out = append(out, x)
		}
	}
	return out
}

func firewallRules(f *Facts) (out []subject) {
	for _, r := range f.Drops {
		out = append(out, f.subject(strings.Join([]string{r.Family, r.Table, r.Chain}, " "), "",
			"family", r.Family, "table", r.Table, "chain", r.Chain, "handle", r.Handle, "rule", r.Text))
	}
	return out
}
