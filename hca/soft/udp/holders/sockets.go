package holders

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sockets returns the inodes of the UDP sockets on a port that are bound to the netdev with this
// index, or to none, in the network namespace of the calling thread (sock_diag(7)). A socket that was
// just closed has inode 0, and is left out. The kernel answers at once; an error means that it cannot
// list sockets.
func Sockets(port uint16, index int) (inodes []uint64, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(&request{family, port})
		messages, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if err != nil {
			return nil, fmt.Errorf("list the UDP sockets: %w", err)
		}
		for _, b := range messages {
			s, ok := parseSocket(b)
			if ok && s.port == port && (s.index == 0 || s.index == index) && s.inode != 0 {
				inodes = append(inodes, s.inode)
			}
		}
	}
	return inodes, nil
}

// request is a struct inet_diag_req_v2 that asks for the UDP sockets on a port.
type request struct {
	family uint8
	port   uint16
}

// Len implements nl.NetlinkRequestData.
func (*request) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r *request) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.family, unix.IPPROTO_UDP
	binary.NativeEndian.PutUint32(b[4:], 1<<32-1) // in any state
	binary.BigEndian.PutUint16(b[8:], r.port)
	return b
}

// socket is the part of struct inet_diag_msg that is used.
type socket struct {
	port  uint16
	index int // of the netdev that it is bound to, or 0
	inode uint64
}

// parseSocket returns false if b is too short.
func parseSocket(b []byte) (s socket, ok bool) {
	const port, index, inode, size = 4, 40, 68, 72
	if len(b) < size {
		return s, false
	}
	return socket{
		port:  binary.BigEndian.Uint16(b[port:]),
		index: int(binary.NativeEndian.Uint32(b[index:])),
		inode: uint64(binary.NativeEndian.Uint32(b[inode:])),
	}, true
}
