package rdma

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"ipoibd/hca"
)

// Directories of sysfs.
const (
	classDevices = "class/infiniband"
	classVerbs   = "class/infiniband_verbs"
	classNetdevs = "class/net"
)

// maxAttr bounds the length of a sysfs attribute in bytes: a page, like the kernel.
const maxAttr = 4096

// attr reads an attribute without surrounding white space.
func attr(sys fs.FS, name ...string) (string, error) {
	f, err := sys.Open(path.Join(name...))
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAttr))
	return strings.TrimSpace(string(text)), err
}

// optional reads an attribute, and returns "" if it cannot be read.
func optional(sys fs.FS, name ...string) string {
	text, err := attr(sys, name...)
	if err != nil {
		return ""
	}
	return text
}

// readDevice reads a device from sysfs, without its verbs interface and its GIDs. An error
// means that the device is gone or malformed, or that it could not be read for lack of
// resources.
func readDevice(sys fs.FS, name string) (Device, error) {
	dir := path.Join(classDevices, name)
	d := Device{
		Name: name, Parent: optional(sys, dir, "parent"),
		NodeType: afterColon(optional(sys, dir, "node_type")), Ports: []Port{},
	}
	if err := readGUID(sys, &d.NodeGUID, dir, "node_guid"); err != nil {
		return Device{}, err
	}
	if err := readGUID(sys, &d.SysImageGUID, dir, "sys_image_guid"); err != nil {
		return Device{}, err
	}
	d.PCIAddr = pciAddr(sys, dir)
	if d.PCIAddr == "" && d.Parent != "" {
		d.PCIAddr = pciAddr(sys, path.Join(classNetdevs, d.Parent))
	}
	for _, n := range numbers(sys, path.Join(dir, "ports"), 1, 255) {
		p := Port{Num: uint8(n), GUID: d.NodeGUID}
		if err := p.read(sys, portDir(name, p.Num)); err != nil {
			return Device{}, err
		}
		d.Ports = append(d.Ports, p)
	}
	return d, nil
}

func readGUID(sys fs.FS, into *hca.GUID, name ...string) error {
	text, err := attr(sys, name...)
	if err != nil {
		return err
	}
	return into.UnmarshalText([]byte(text))
}

// afterColon returns the text of an attribute such as "4: ACTIVE".
func afterColon(s string) string {
	if _, text, ok := strings.Cut(s, ":"); ok {
		return strings.TrimSpace(text)
	}
	return s
}

func portDir(device string, num uint8) string {
	return path.Join(classDevices, device, "ports", strconv.Itoa(int(num)))
}

// read reads the port without its GID table. The caller has set GUID to the node's.
func (p *Port) read(sys fs.FS, dir string) error {
	state, err := attr(sys, dir, "state")
	if err != nil {
		return err
	}
	if p.State, err = portState(state); err != nil {
		return err
	}
	p.LinkLayer = linkLayer(optional(sys, dir, "link_layer"))
	p.SMLID = lid(optional(sys, dir, "sm_lid"))
	if g, ok := readGID(sys, dir, "0"); ok && p.LinkLayer == hca.LinkLayerInfiniBand {
		p.GUID = hca.GUID(g[8:])
	}
	return nil
}

// portState parses "4: ACTIVE" (state_show, drivers/infiniband/core/sysfs.c). The number is a
// value of enum ibv_port_state.
func portState(s string) (hca.PortState, error) {
	number, _, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || hca.PortState(n) > hca.PortActiveDefer {
		return 0, fmt.Errorf("invalid port state %q", s)
	}
	return hca.PortState(n), nil
}

func linkLayer(s string) hca.LinkLayer {
	for _, l := range []hca.LinkLayer{hca.LinkLayerInfiniBand, hca.LinkLayerEthernet} {
		if s == l.String() {
			return l
		}
	}
	return hca.LinkLayerUnspecified
}

// lid parses "0x1". It returns 0, which is not a valid LID, if the text is malformed.
func lid(s string) uint16 {
	n, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// maxGIDs bounds a GID table. The largest tables of hardware have some hundred entries.
const maxGIDs = 4096

// readGIDs reads the non-empty entries. An entry that disappears while it is read counts as
// empty.
func readGIDs(sys fs.FS, dir string, layer hca.LinkLayer) []GID {
	out := []GID{}
	for _, i := range numbers(sys, path.Join(dir, "gids"), 0, maxGIDs-1) {
		index := strconv.Itoa(i)
		if g, ok := readGID(sys, dir, index); ok {
			typ := gidType(optional(sys, dir, "gid_attrs/types", index), layer)
			out = append(out, GID{Index: i, GID: g, Type: typ, Netdev: optional(sys, dir, "gid_attrs/ndevs", index)})
		}
	}
	return out
}

// readGID reads an entry. It returns false if the entry is empty.
func readGID(sys fs.FS, dir, index string) (g hca.GID, ok bool) {
	err := g.UnmarshalText([]byte(optional(sys, dir, "gids", index)))
	return g, err == nil && !g.IsZero()
}

// gidType parses the type of a GID. The kernel uses the same text for IB and RoCE v1
// (gid_type_str, drivers/infiniband/core/cache.c), so the link layer decides.
func gidType(s string, layer hca.LinkLayer) hca.GIDType {
	switch {
	case s == hca.GIDTypeRoCEv2.String():
		return hca.GIDTypeRoCEv2
	case layer == hca.LinkLayerInfiniBand:
		return hca.GIDTypeIB
	}
	return hca.GIDTypeRoCEv1
}

// numbers returns the entries of a directory that are numbers from low to high, in order. It
// returns none if the directory does not exist.
func numbers(sys fs.FS, dir string, low, high int) (out []int) {
	entries, _ := fs.ReadDir(sys, dir)
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err == nil && n >= low && n <= high && strconv.Itoa(n) == e.Name() {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// pciPattern is a PCI address: domain:bus:device.function.
var pciPattern = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciAddr returns the PCI function of a device of a class, or "" if there is none: the last
// PCI address in the path to which the link of the class points.
func pciAddr(sys fs.FS, link string) string {
	target, err := fs.ReadLink(sys, link)
	if err != nil {
		return ""
	}
	for _, part := range slices.Backward(strings.Split(target, "/")) {
		if pciPattern.MatchString(part) {
			return part
		}
	}
	return ""
}

// readVerbs returns the names of the verbs interfaces by the names of their devices.
func readVerbs(sys fs.FS) map[string]string {
	out := map[string]string{}
	entries, _ := fs.ReadDir(sys, classVerbs)
	for _, e := range entries {
		if device := optional(sys, classVerbs, e.Name(), "ibdev"); device != "" {
			out[device] = e.Name()
		}
	}
	return out
}
