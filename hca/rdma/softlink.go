package rdma

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// softRoCE is the link type of Soft-RoCE (rdma-link(8)).
const softRoCE = "rxe"

// AddLink makes a Soft-RoCE device on a netdev.
func AddLink(name, netdev string) error {
	return linkError(fmt.Sprintf("add Soft-RoCE device %s on %s", name, netdev), netlink.RdmaLinkAdd(name, softRoCE, netdev))
}

// DelLink deletes a Soft-RoCE device. It blocks in the kernel, for ever if need
// be, until everybody has closed it (see [Users]); meanwhile the device is in no
// list any more.
func DelLink(name string) error {
	return linkError("delete Soft-RoCE device "+name, netlink.RdmaLinkDel(name))
}
