package link

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetMTU sets the interface's MTU, in bytes of payload of an Ethernet frame. May
// block.
func (t *TAP) SetMTU(mtu int) error {
	err := t.visit(func(r *rtnl, l netlink.Link) error {
		return r.setLink(l.Attrs().Index, uint32Attr(unix.IFLA_MTU, uint32(mtu)))
	})
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", t.name, mtu, err)
	}
	return nil
}
