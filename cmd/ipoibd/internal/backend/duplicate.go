package backend

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// duplicates finds other hosts that use an IPv4 address of the underlay: those that send ARP
// with it as their own (RFC 5227, section 2.4). The kernel neither reports such a host nor
// delivers its datagrams. ARP from another netdev of this host is no conflict: by default
// Linux sends it with any address of the host. (For IPv6, the kernel itself withdraws the
// address.)
type duplicates struct {
	fd    int // packet socket, -1: none
	index int // of the netdev that it is bound to
	found string
	at    time.Time // when the host was seen last
}

const (
	// duplicateFor is how long a notice stays after the other host was seen.
	duplicateFor = time.Minute
	// maxARPs bounds the packets that one look reads; its socket's buffer holds fewer.
	maxARPs = 1024
	arpLen  = 28 // Ethernet and IPv4 (RFC 826)
)

// open listens on a netdev, unless it does. Without CAP_NET_RAW it does not.
func (d *duplicates) open(netdev string) {
	dev, err := net.InterfaceByName(netdev)
	if err != nil || d.fd >= 0 && d.index == dev.Index {
		return
	}
	d.close()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	arp := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: dev.Index}); err != nil {
		_ = unix.Close(fd)
		return
	}
	d.fd, d.index = fd, dev.Index
}

// look reads what has arrived, and describes another host with one of our addresses.
func (d *duplicates) look(now time.Time, ours []netip.Addr) string {
	var b [arpLen]byte
	var netdevs []net.Interface // of this host; read once, since each reading lists them all
	for range maxARPs {
		n, from, err := unix.Recvfrom(d.fd, b[:], 0)
		if err != nil {
			break
		}
		sender, addr := net.HardwareAddr(b[8:14]), netip.AddrFrom4([4]byte(b[14:18]))
		if n < arpLen || !slices.Contains(ours, addr) || isForOthers(from) {
			continue
		}
		if netdevs == nil {
			if netdevs, err = net.Interfaces(); err != nil {
				break
			}
		}
		isSender := func(dev net.Interface) bool { return slices.Equal(dev.HardwareAddr, sender) }
		if !slices.ContainsFunc(netdevs, isSender) {
			d.found, d.at = fmt.Sprintf("%s has the underlay address %s as well", sender, addr), now
		}
	}
	if d.at.IsZero() || now.Sub(d.at) >= duplicateFor {
		return ""
	}
	return d.found
}

// isForOthers reports whether the kernel does not process a packet, because it is addressed
// to another host, or belongs to a VLAN that this host is not in.
func isForOthers(from unix.Sockaddr) bool {
	addr, ok := from.(*unix.SockaddrLinklayer)
	return ok && addr.Pkttype == unix.PACKET_OTHERHOST
}

func (d *duplicates) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	d.fd = -1
}
