package link

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// SetMTU sets the interface's MTU, in bytes of payload of an Ethernet frame. May
// block.
func (t *TAP) SetMTU(mtu int) error {
	err := t.nl.do(func(h *netlink.Handle) error {
		l, err := h.LinkByIndex(t.index)
		if err != nil {
			return err
		}
		return h.LinkSetMTU(l, mtu)
	})
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", t.name, mtu, classify(err))
	}
	return nil
}
