package holders

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sockets returns the inodes of the UDP sockets on a port that are bound to the netdev with this
// index, or to none, in the network namespace of the calling thread (sock_diag(7)). A socket that was
// just closed has inode 0, and is left out. The kernel answers at once; an error means that it cannot
// list sockets.
func Sockets(port uint16, index int) (inodes []uint64, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagUDP(family)
		if err != nil {
			return nil, fmt.Errorf("list the UDP sockets: %w", err)
		}
		for _, s := range sockets {
			netdev := int(s.ID.Interface)
			if s.ID.SourcePort == port && (netdev == 0 || netdev == index) && s.INode != 0 {
				inodes = append(inodes, uint64(s.INode))
			}
		}
	}
	return inodes, nil
}
