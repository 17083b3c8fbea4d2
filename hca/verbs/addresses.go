package verbs

import (
	"fmt"
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
