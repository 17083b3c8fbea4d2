package sandbox

import (
	"fmt"
	"net"
	"net/netip"
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
	Filters      int      // eBPF filters that it gets; 0: no eBPF programs at all
}

// Numbers of eBPF filters, which are loaded before the process is confined. Each takes a descriptor,
// 0.1 ms of the start, and of the kernel's memory a page and 320 bytes for each CPU. Interfaces beyond
// these numbers work without one.
const (
	spareFilters = 16   // for interfaces that reloads add
	lentFilters  = 256  // for interfaces that are added at run time: a node has at most 110 pods by Kubernetes' default, and rarely more than 250
	maxFilters   = 1024 // of descriptors, a process often may have no more than some thousands
)

// Directories that the daemon uses, whatever its configuration.
const (
	runDir     = "/run/ipoibd" // of package link, among others
	tunDir     = "/dev/net"
	netnsDir   = "/run/netns" // of container runtimes and ip-netns(8)
	deviceDir  = "/dev"
	sysDir     = "/sys"
	resolvConf = "/etc/resolv.conf"
)

// alwaysRead are the kernel's own files, libraries, which may be loaded late, the time zone, and the
// file from which a software HCA's GUID is made.
var alwaysRead = []string{
	"/proc", sysDir, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
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
	if dir := filepath.Dir(file); file != "" && dir != "/" { // since editors replace a file
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
	for _, list := range []*[]string{&p.Read, &p.Write, &p.Private, &p.Devices} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p
}

func (p *Policy) addDevice(d *config.Device) {
	if config.KindOf(d.HCA) == config.KindRDMA {
		p.Capabilities = append(p.Capabilities, capability.CAP_IPC_LOCK)
		p.Read = append(p.Read, "/etc/libibverbs.d")
		p.Devices = append(p.Devices, deviceDir)
		if d.Coordinator != "" {
			p.Private = append(p.Private, d.Coordinator)
		}
		if d.Reset == config.ResetDriver || d.Reset == config.ResetPCI {
			p.Write = append(p.Write, sysDir)
		}
	}
	if d.Lanes > 1 { // sockets get an owner of their own
		p.Capabilities = append(p.Capabilities, capability.CAP_CHOWN)
	}
	if slices.ContainsFunc(d.Peers, func(s string) bool { _, err := netip.ParseAddr(s); return err != nil }) {
		p.Read = append(p.Read, "/etc", resolvConf) // it may be a link to another directory
	}
}

// below1024 reports whether an address host:port has a port that not every process may bind.
func below1024(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return err == nil && n < 1024
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
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("the daemon has given up privileges at its start that this needs: %s; restart it", strings.Join(lacks, ", "))
}

// within reports whether a path is a directory, or below it. Both are absolute.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// name returns the name of a capability as in capabilities(7).
func name(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }
