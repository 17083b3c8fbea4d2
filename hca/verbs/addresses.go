package verbs

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"ipoibd/hca"
)

// address is an IP address and the index of the interface that has it.
type address struct {
	index int
	addr  netip.Addr
}

// dumpTries bounds the attempts to read a list. One fails if the list changes while it is
// read, or if another process sends to the socket. Each attempt uses another socket.
const dumpTries = 5

// addresses returns the addresses in the calling thread's network namespace.
func addresses() (map[address]bool, error) {
	var list []netlink.Addr
	var err error
	for range dumpTries {
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err == nil {
			break
		}
	}
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
