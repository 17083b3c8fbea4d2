package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// ErrNoSubsystem: the kernel has no RDMA at all. It wraps hca.ErrNoDevice.
var ErrNoSubsystem = fmt.Errorf("%w: the kernel has no RDMA subsystem (module ib_core)", hca.ErrNoDevice)

// indexed is what rdma netlink says of a device.
type indexed struct {
	index uint32
	name  string
}

// List returns the devices, by name, without their GIDs. A device that is being
// removed is not among them. Errors: [ErrNoSubsystem]; any other is no statement on what there is.
func List() ([]Device, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	return describe(os.DirFS("/sys"), links)
}

// describe reads the devices that netlink listed from sysfs. If this process lacks the
// resources to read one, describe fails: a list without that device would say that the
// device is gone.
func describe(files fs.FS, links []indexed) ([]Device, error) {
	sys := &noting{FS: files}
	if _, err := fs.Stat(sys, classDevices); err != nil && len(links) > 0 {
		return nil, fmt.Errorf("read the listed RDMA devices: %w; is sysfs mounted at /sys?", err)
	}
	verbs := readVerbs(sys)
	var out []Device
	for _, l := range links {
		d, err := readDevice(sys, l.name)
		if err != nil {
			continue // gone meanwhile, or malformed; a lack of resources is noted
		}
		d.Index, d.Verbs = l.index, verbs[l.name]
		out = append(out, d)
	}
	if err := sys.noted(); err != nil {
		return nil, fmt.Errorf("read the listed RDMA devices: %w", err)
	}
	slices.SortFunc(out, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// listTries bounds how often a list is taken that changes while it is read.
const listTries = 5

func listLinks() (out []indexed, err error) {
	var links []*netlink.RdmaLink
	for range listTries {
		links, err = netlink.RdmaLinkList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, linkError("list RDMA devices", err)
	}
	for _, l := range links {
		out = append(out, indexed{l.Attrs.Index, l.Attrs.Name})
	}
	return out, nil
}

// linkError names what was done; a kernel that does not know the netlink protocol
// has no RDMA.
func linkError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%s: %w", what, ErrNoSubsystem)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Find returns the device of a name. Errors: those of [List]; hca.ErrNoDevice,
// with the names of those that there are.
func Find(name string) (Device, error) {
	devices, err := List()
	if err != nil {
		return Device{}, err
	}
	return find(devices, name)
}

// find picks a device by its name.
func find(devices []Device, name string) (Device, error) {
	var names []string
	for _, d := range devices {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return Device{}, fmt.Errorf("RDMA device %q: %w; there is none at all", name, hca.ErrNoDevice)
	}
	return Device{}, fmt.Errorf("RDMA device %q: %w; there are %s", name, hca.ErrNoDevice, strings.Join(names, ", "))
}

// ReadGIDs reads the tables of GIDs of all ports. It takes its time: a table has up
// to some thousand entries, each a file.
func (d *Device) ReadGIDs() error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	d.readGIDs(os.DirFS("/sys"))
	d.markHere(addrs)
	return nil
}

// markHere says which GIDs are among the addresses of a network namespace. Where
// namespaces share RDMA devices (the default: rdma-system(8)), a table has those
// of all of them.
func (d *Device) markHere(addrs []net.Addr) {
	here := map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			here[p.Addr()] = true
		}
	}
	for _, p := range d.Ports {
		for i := range p.GIDs {
			p.GIDs[i].Here = here[p.GIDs[i].GID.Addr()]
		}
	}
}

func (d *Device) readGIDs(sys fs.FS) {
	for i := range d.Ports {
		p := &d.Ports[i]
		p.GIDs = readGIDs(sys, portDir(d.Name, p.Num), p.LinkLayer)
	}
}
