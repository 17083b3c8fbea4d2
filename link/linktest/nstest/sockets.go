package nstest

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DestroySockets makes the kernel destroy the AF_INET6 UDP sockets that some ports have now (SOCK_DESTROY of
// sock_diag(7)), as any process with CAP_NET_ADMIN in the namespace can. It returns their number, which includes
// those that their owner closes meanwhile.
func (ns *Namespace) DestroySockets(tb testing.TB, ports ...uint16) (n int) {
	tb.Helper()
	ns.Do(func() {
		sockets, err := netlink.SocketDiagUDP(unix.AF_INET6)
		must(tb, "list the UDP sockets", err)
		for _, s := range sockets {
			if slices.Contains(ports, s.ID.SourcePort) {
				if err := destroySocket(s); !errors.Is(err, unix.ENOENT) || listed(tb, s) {
					must(tb, "destroy a UDP socket", err)
				}
				n++
			}
		}
	})
	return n
}

// listed reports whether a socket still exists.
func listed(tb testing.TB, s *netlink.Socket) bool {
	now, err := netlink.SocketDiagUDP(unix.AF_INET6)
	must(tb, "list the UDP sockets", err)
	return slices.ContainsFunc(now, func(other *netlink.Socket) bool { return other.INode == s.INode })
}

// destroySocket destroys a socket. The kernel looks it up by its addresses and compares its cookie.
// In a group of sockets on one port it selects one by a hash, so the request needs the remote port
// that selects the right one.
func destroySocket(s *netlink.Socket) (err error) {
	for remote := range uint16(1000) {
		req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
		req.AddData(&destroyRequest{s, remote})
		if _, err = req.Execute(unix.NETLINK_INET_DIAG, 0); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return err
}

// destroyRequest is a struct inet_diag_req_v2.
type destroyRequest struct {
	*netlink.Socket
	remotePort uint16
}

// Len implements nl.NetlinkRequestData.
func (*destroyRequest) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r *destroyRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.Family, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[8:], r.ID.SourcePort)
	binary.BigEndian.PutUint16(b[10:], r.remotePort)
	copy(b[12:], r.ID.Source) // the remote address, at 28, is any
	binary.NativeEndian.PutUint32(b[44:], r.ID.Interface)
	binary.NativeEndian.PutUint32(b[48:], r.ID.Cookie[0])
	binary.NativeEndian.PutUint32(b[52:], r.ID.Cookie[1])
	return b
}
