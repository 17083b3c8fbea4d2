package verbs

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"ipoibd/hca"
	"ipoibd/link/kernel"
)

// address is an IP address and the index of the interface that has it.
type address struct {
	index int
	addr  netip.Addr
}

// ipoibAddressLen is the length of an IPoIB interface's hardware address: flags, QPN, GID (RFC 4391 section 9.1.1).
const ipoibAddressLen = 20

// kernelIPoIB counts the kernel's IPoIB interfaces on the port with a GID, in the calling thread's network namespace, and
// those of them that are up.
func kernelIPoIB(gid hca.GID) (all, up int, err error) {
	list, err := kernel.List(netlink.LinkList)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: list interfaces: %w", hca.ErrNoMemory, err)
	}
	for _, l := range list {
		a := l.Attrs()
		if len(a.HardwareAddr) != ipoibAddressLen || hca.GID(a.HardwareAddr[ipoibAddressLen-len(gid):]) != gid {
			continue
		}
		all++
		if a.Flags&net.FlagUp != 0 {
			up++
		}
	}
	return all, up, nil
}

// addresses returns the addresses in the calling thread's network namespace.
func addresses() (map[address]bool, error) {
	list, err := kernel.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("%w: list addresses: %w", hca.ErrNoMemory, err)
	}
	out := make(map[address]bool, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out[address{a.LinkIndex, ip.Unmap()}] = true
		}
	}
	return out, nil
}
