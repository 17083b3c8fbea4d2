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
	"ipoibd/link/kernel"
)

// ErrNoSubsystem means that the kernel has no RDMA subsystem. It wraps hca.ErrNoDevice.
var ErrNoSubsystem = fmt.Errorf("%w: the kernel has no RDMA subsystem (module ib_core)", hca.ErrNoDevice)

// indexed is the name and the index of a device, from rdma netlink.
type indexed struct {
	index uint32
	name  string
}

// List returns the devices without their GIDs, sorted by name. It omits a device that is being
// removed. Errors: [ErrNoSubsystem]; after any other error it is unknown which devices exist.
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
			continue // removed in the meantime, or malformed; sys.noted reports a lack of resources
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

func listLinks() (out []indexed, err error) {
	links, err := kernel.List(netlink.RdmaLinkList)
	if err != nil {
		return nil, linkError("list RDMA devices", err)
	}
	for _, l := range links {
		out = append(out, indexed{l.Attrs.Index, l.Attrs.Name})
	}
	return out, nil
}

// linkError adds the failed operation to an error. A kernel that does not know the netlink
// protocol has no RDMA subsystem.
func linkError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%s: %w", what, ErrNoSubsystem)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Find returns the device with a name from a list, or hca.ErrNoDevice with the names of the
// devices in it.
func Find(devices []Device, name string) (Device, error) {
	var names []string
	for _, d := range devices {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return Device{}, fmt.Errorf("RDMA device %q: %w; the kernel has none", name, hca.ErrNoDevice)
	}
	return Device{}, fmt.Errorf("RDMA device %q: %w; available: %s", name, hca.ErrNoDevice, strings.Join(names, ", "))
}

// ReadGIDs reads the GID tables of all ports. It can take long, because a table has up to
// some thousand entries, and each is a file.
func (d *Device) ReadGIDs() error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	d.readGIDs(os.DirFS("/sys"))
	d.markHere(addrs)
	return nil
}

// markHere sets Here for the GIDs that are addresses of a network namespace. If namespaces
// share RDMA devices (the default, see rdma-system(8)), a table contains the addresses of
// all of them.
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
