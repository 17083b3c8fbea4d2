package rdma

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// softRoCE is the link type of Soft-RoCE (rdma-link(8)).
const softRoCE = "rxe"

// AddLink creates a Soft-RoCE device on a netdev.
func AddLink(name, netdev string) error {
	err := netlink.RdmaLinkAdd(name, softRoCE, netdev)
	return linkError(fmt.Sprintf("add Soft-RoCE device %s on %s", name, netdev), err)
}

// DelLink deletes a Soft-RoCE device. It blocks in the kernel, possibly forever, until all
// users have closed the device (see [Users]). In the meantime List does not return the
// device.
func DelLink(name string) error {
	return linkError("delete Soft-RoCE device "+name, netlink.RdmaLinkDel(name))
}
