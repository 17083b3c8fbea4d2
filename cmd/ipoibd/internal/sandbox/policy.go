package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"

	"ipoibd/cmd/ipoibd/internal/config"
)

// Policy is what a process may do in a sandbox. Each directory includes all below it. Files may
// be named in place of directories.
type Policy struct {
	Capabilities []capability.Cap
	Read         []string // directories in which it may read
	Write        []string // directories in which it may also create, change and remove
	Private      []string // the same, for this user alone
	Devices      []string // directories whose devices it may open
	Attributes   []string // patterns of files of sysfs, or of directories of them, that it may write
	Filters      int      // number of eBPF filters to load; 0: no eBPF programs of interfaces at all
	FastPath     bool     // to load the fast path, and to change its maps
}

// Numbers of eBPF filters, which are loaded before the process is confined. Each takes a descriptor,
// 0.1 ms of the start, and of the kernel's memory a page and 320 bytes for each CPU. Interfaces beyond
// these numbers work without one.
const (
	// For interfaces that reloads add.
	spareFilters = 16
	// For interfaces that are added at run time: a node has at most 110 pods by Kubernetes' default, and rarely
	// more than 250.
	lentFilters = 256
	// A process is often limited to a few thousand descriptors.
	maxFilters = 1024
)

// Directories that the daemon uses, whatever its configuration.
const (
	runDir   = "/run/ipoibd" // of sockets and locks, by default
	tunDir   = "/dev/net"
	netnsDir = "/run/netns" // of container runtimes and ip-netns(8)
	verbsDir = "/dev/infiniband"
	pciDir   = "/sys/bus/pci"

	verbsConfig = "/etc/libibverbs.d"
)

// resolver are the files that say how names of hosts are resolved (resolv.conf(5), nsswitch.conf(5)).
var resolver = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"}

// alwaysRead are the kernel's files about processes, devices and itself, as far as libraries need
// them; libraries, which may be loaded late; the time zone; and the file from which a software HCA's
// GUID is made.
var alwaysRead = []string{
	"/proc",
	"/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module",
	"/sys/fs/cgroup", "/sys/kernel/btf", "/sys/kernel/mm",
	"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
	"/usr/share/zoneinfo", "/etc/localtime", "/etc/machine-id",
}

// Needs returns what the daemon needs for a configuration. file is the absolute path from which it
// was read, and is read again by reloads; empty: there is none.
func Needs(c *config.Config, file string) Policy {
	p := Policy{
		Capabilities: []capability.Cap{capability.CAP_NET_ADMIN, capability.CAP_NET_RAW},
		Read:         slices.Clone(alwaysRead),
		Write:        []string{runDir, filepath.Dir(c.Control)},
		Devices:      []string{tunDir},
	}
	if file != "" {
		p.Read = append(p.Read, file)
	}
	if dir := filepath.Dir(file); own(dir) { // since editors replace a file
		p.Read = append(p.Read, dir)
	}
	if below1024(c.MetricsListen) {
		p.Capabilities = append(p.Capabilities, capability.CAP_NET_BIND_SERVICE)
	}
	for i := range c.Devices {
		p.addDevice(&c.Devices[i])
	}
	lends := c.Lend
	if lends { // interfaces that are added later use eBPF unless they say otherwise
		p.Filters = lentFilters
		p.Read = append(p.Read, netnsDir)
	}
	for i := range c.Interfaces {
		f := &c.Interfaces[i]
		if f.EBPF {
			p.Filters++
		}
		lends = lends || f.Follow || f.Netns != ""
		if f.Netns != "" {
			p.Read = append(p.Read, filepath.Dir(f.Netns))
		}
	}
	if lends { // enter the namespace, and hear what happens there
		p.Capabilities = append(p.Capabilities, capability.CAP_SYS_ADMIN, capability.CAP_NET_BROADCAST)
	}
	if p.Filters > 0 {
		p.Filters = min(p.Filters+spareFilters, maxFilters)
	}
	slices.Sort(p.Capabilities)
	p.Capabilities = slices.Compact(p.Capabilities)
	for _, list := range []*[]string{&p.Read, &p.Write, &p.Private, &p.Devices, &p.Attributes} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p
}

func (p *Policy) addDevice(d *config.Device) {
	p.FastPath = p.FastPath || d.FastPath
	if config.KindOf(d.HCA) == config.KindRDMA {
		p.Capabilities = append(p.Capabilities, capability.CAP_IPC_LOCK)
		p.Read = append(p.Read, verbsConfig)
		p.Devices = append(p.Devices, verbsDir)
		if d.Coordinator != "" {
			p.Private = append(p.Private, d.Coordinator)
		}
		if d.Reset == config.ResetDriver || d.Reset == config.ResetPCI {
			p.Attributes = append(p.Attributes, pciDir+"/drivers_probe", pciDir+"/drivers", pciDir+"/devices/*/reset")
		}
	}
	if slices.ContainsFunc(d.Peers, func(s string) bool { _, err := netip.ParseAddr(s); return err != nil }) {
		p.Read = append(p.Read, resolver...)
	}
}

// below1024 reports whether an address host:port has a port that not every process may bind.
func below1024(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return err == nil && n < 1024
}

// NeedsRoot reports whether a process must run as root, besides its capabilities: the attributes of
// sysfs that reset a device belong to root.
func (p Policy) NeedsRoot() bool { return len(p.Attributes) > 0 }

// own reports whether a directory is one of ipoibd's by its name, or is below one.
func own(dir string) bool { return strings.Contains(dir, "/ipoibd") }

// shared reports whether a directory has files of other programs, as far as its path shows.
func shared(dir string) bool {
	if own(dir) {
		return false
	}
	parts := strings.Split(strings.Trim(dir, "/"), "/")
	if len(parts) < 2 {
		return true // "/", /run, /tmp, /root
	}
	if strings.Contains(dir, "/.") {
		return true // .ssh, .kube
	}
	switch parts[0] {
	case "bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "sbin", "sys", "usr":
		return true
	case "home":
		return len(parts) == 2
	case "run", "var":
		program := parts[1]
		switch program {
		case "user":
			return len(parts) < 4
		case "cache", "lib", "lock", "log", "mail", "run", "spool", "tmp":
			if len(parts) == 2 {
				return true
			}
			program = parts[2]
		}
		// A directory like docker/netns has nothing but files of network namespaces.
		return slices.Contains(otherPrograms, program) && parts[len(parts)-1] != "netns"
	}
	return false
}

// otherPrograms have directories in /run and /var and trust what they find there.
var otherPrograms = []string{
	"cni", "containerd", "containers", "crio", "cron", "dbus",
	"docker", "kubelet", "libvirt", "podman", "systemd", "udev",
}

// misleads reports whether the path of a directory to which the daemon writes leads to a real one that other
// programs use, or out of ipoibd's own: a container to which /run/ipoibd is mounted could make links in it.
func misleads(path, real string) bool { return shared(real) || own(path) && !own(real) }

// narrow returns an error if the process would get access to a directory that others use, or through
// a link to one.
func (p Policy) narrow() error {
	for _, dir := range slices.Concat(p.Write, p.Private) {
		if real := resolved(dir); misleads(dir, real) {
			return tooWide(real)
		}
	}
	needed := append(slices.Clone(alwaysRead), verbsConfig)
	for _, path := range p.Read {
		info, err := os.Stat(path)
		isNeeded := slices.ContainsFunc(needed, func(dir string) bool { return within(path, dir) })
		if err != nil || !info.IsDir() || isNeeded {
			continue
		}
		if real := resolved(path); shared(real) {
			return tooWide(real)
		}
	}
	return nil
}

// resolved returns a path without links; of a missing file, the path itself.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

func tooWide(real string) error {
	return fmt.Errorf("the daemon would get access to all of %s through a path in the configuration "+
		"(control, coordinator or netns); choose a path in a directory of its own, such as %s",
		real, filepath.Join(runDir, "NAME"))
}

// Check returns an error if a process in the sandbox of one policy cannot do what another one
// allows.
func Check(entered, next Policy) error {
	var lacks []string
	writable := slices.Concat(entered.Write, entered.Private)
	for _, c := range next.Capabilities {
		if !slices.Contains(entered.Capabilities, c) {
			lacks = append(lacks, name(c))
		}
	}
	for _, l := range []struct {
		next, entered []string
		to            string
	}{
		{next.Read, slices.Concat(entered.Read, writable), "to read "},
		{slices.Concat(next.Write, next.Private), writable, "to write to "},
		{next.Devices, entered.Devices, "to open devices in "},
		{next.Attributes, entered.Attributes, "to write to "},
	} {
		for _, dir := range l.next {
			if !slices.ContainsFunc(l.entered, func(parent string) bool { return within(dir, parent) }) {
				lacks = append(lacks, l.to+dir)
			}
		}
	}
	if next.Filters > 0 && entered.Filters == 0 {
		lacks = append(lacks, "to load eBPF programs")
	}
	if next.FastPath && !entered.FastPath {
		lacks = append(lacks, "to load the fast path")
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("this needs privileges that the daemon dropped at its start (%s); restart the daemon",
		strings.Join(lacks, ", "))
}

// within reports whether a path is a directory, or below it. Both are absolute.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// name returns the name of a capability as in capabilities(7).
func name(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }
