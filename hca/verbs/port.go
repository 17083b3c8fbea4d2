//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"syscall"

	"ipoibd/hca"
)

// QueryPort implements [hca.Device]. The GID table ends with its last non-empty entry. GIDs
// of other network namespaces appear as empty entries.
func (d *Device) QueryPort(port uint8) (hca.PortAttr, error) {
	if err := d.enter(); err != nil {
		return hca.PortAttr{}, refused("query_port", d.portName(port), err)
	}
	defer d.leave()
	a, err := d.portAttr(port)
	if err != nil {
		return hca.PortAttr{}, err
	}
	p := portState(&a)
	entries, err := d.gids()
	if err != nil {
		return hca.PortAttr{}, err
	}
	here, err := addresses()
	if err != nil {
		return p, refused("query_port", d.portName(port), err)
	}
	p.GIDs = gidTable(usableHere(entries, here), port, p.ActiveMTU, int(a.gid_tbl_len))
	p.GUID = portGUID(p.GIDs)
	if p.LinkLayer == hca.LinkLayerInfiniBand {
		p.KernelGroups = kernelGroups()
	}
	p.PKeys, err = readPKeys(d.sysfs.FS(), port, int(a.pkey_tbl_len))
	return p, refused("query_pkey", d.portName(port), err)
}

// portName returns the kernel's name of a port, such as "mlx5_0/1".
func (d *Device) portName(port uint8) string { return fmt.Sprintf("%s/%d", d.attr.Name, port) }

// portAttr queries a port. It checks the number, because not every provider does.
func (d *Device) portAttr(port uint8) (a cPortAttr, err error) {
	if port < 1 || port > d.attr.Ports {
		return a, refused("query_port", d.portName(port), hca.ErrInvalid)
	}
	err = failed("query_port", d.portName(port), errno(C.shim_query_port(d.ctx, C.uint8_t(port), &a)))
	return a, err
}

// gids returns the non-empty GID entries of all ports.
func (d *Device) gids() ([]cGIDEntry, error) {
	if d.maxGIDs == 0 {
		return nil, nil
	}
	entries := make([]cGIDEntry, d.maxGIDs)
	n := C.shim_query_gids(d.ctx, &entries[0], C.size_t(len(entries)))
	if n < 0 {
		return nil, failed("query_gid", d.attr.Name, syscall.Errno(-n))
	}
	return entries[:n], nil
}

// usableHere removes the GIDs of other network namespaces. If namespaces share RDMA devices
// (the default, see rdma-system(8)), a table contains the addresses of all namespaces, such
// as those of a container's macvlan on the NIC. The index of such a netdev means a
// different netdev here, or none. usableHere keeps all link-local GIDs: the default GID
// exists before its netdev has the address, and no event reports when it gets it.
func usableHere(entries []cGIDEntry, here map[address]bool) (out []cGIDEntry) {
	for _, e := range entries {
		a := gidAddress(&e)
		if a.index == 0 || a.addr.IsLinkLocalUnicast() || here[a] {
			out = append(out, e)
		}
	}
	return out
}

// gidAddress returns the address and the netdev of a RoCE GID. The index is 0 if the netdev
// is unknown.
func gidAddress(e *cGIDEntry) address {
	return address{int(e.ndev_ifindex), hca.GID(e.gid).Addr()}
}

// portGUID returns the interface ID of GID 0 (IBA 4.1.1): the GUID of the port, or on RoCE
// the interface ID of the default GID, which is derived from the netdev's MAC.
func portGUID(gids []hca.GIDEntry) (g hca.GUID) {
	if len(gids) > 0 {
		copy(g[:], gids[0].GID[8:])
	}
	return g
}
