package udp

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Offsets and values for classic BPF programs of sockets.
const (
	ancillary      = 0xfffff000    // SKF_AD_OFF of linux/filter.h
	packetType     = ancillary + 4 // SKF_AD_PKTTYPE
	netdevIndex    = ancillary + 8 // SKF_AD_IFINDEX
	packetHost     = 0             // PACKET_HOST of linux/if_packet.h
	packetLoopback = 5             // PACKET_LOOPBACK of linux/if_packet.h
	loopbackIndex  = 1             // LOOPBACK_IFINDEX of net/flow.h, in each namespace
)

// refuseAll makes the kernel drop every datagram that arrives at a socket.
func refuseAll(fd int) error {
	return setFilter(fd, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
}

// admitOthers makes the kernel drop datagrams from this host, and accept all others. Datagrams from
// this host are multicast and broadcast that the kernel loops back, and unicast over the loopback,
// which the kernel delivers as if the netdev with the address had received it. Other processes that
// send them can use any address of the host.
func admitOthers(fd int) error {
	return setFilter(fd, []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: packetLoopback, Jt: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: netdevIndex},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loopbackIndex, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	})
}

// admitUnicast makes the kernel drop all datagrams except unicast ones from other hosts; see
// admitOthers. The first lane receives multicast and broadcast.
func admitUnicast(fd int) error {
	return setFilter(fd, []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: packetHost, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: netdevIndex},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loopbackIndex, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	})
}

// setFilter attaches a classic BPF program, which replaces the last one.
func setFilter(fd int, filter []unix.SockFilter) error {
	prog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog)
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
}
