package udp

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// Port is the UDP destination port of RoCEv2 (IANA; RoCEv2 annex A17.3.1).
const Port = 4791

// MulticastTTL is the default TTL and hop limit of multicast packets. They stay on the
// link, as in an IPoIB subnet without a multicast router.
const MulticastTTL = 1

// defaultRecvBuf is the size of the receive buffer in bytes: several milliseconds
// of traffic at 10 Gb/s.
const defaultRecvBuf = 8 << 20

// defaultSendBuf is the size of the send buffer in bytes; the kernel doubles it for its
// overhead. It is larger than the packets that the kernel keeps for neighbours of one
// family that do not answer: by default 208 KiB for each (unres_qlen_bytes), including
// overhead, for at most 1024 (gc_thresh3). So they cannot fill the buffer, and there is
// always room for packets to others. Memory is used only while it is needed. A larger
// buffer would let a blocked underlay with a long queue use more.
const defaultSendBuf = 128 << 20

// socket is a UDP socket, owned by its file. The methods of raw fail only after the file was
// closed.
type socket struct {
	file    *os.File
	raw     syscall.RawConn
	ipv6    bool   // carries both families; otherwise only IPv4
	port    uint16 // to which it is bound
	dropped uint32 // the kernel's count of drops at the socket when this use of it began

	destroyed atomic.Bool // by another process: a call has returned ECONNABORTED
}

// failure returns the error of every call after the socket was destroyed or its netdev removed.
func (s *socket) failure() error {
	if s.raw.Control(func(uintptr) {}) != nil {
		return hca.ErrClosed
	}
	return hca.ErrIO
}

// bound is the descriptor of a socket that is bound to a port, and not owned by a file; -1
// means that there is none.
type bound struct {
	fd   int
	ipv6 bool
	port uint16
}

// option is a socket option with an integer value.
type option struct{ level, name, value int }

var recvOptions4 = []option{
	{unix.SOL_IP, unix.IP_PKTINFO, 1},
	{unix.SOL_IP, unix.IP_RECVTOS, 1},
	{unix.SOL_IP, unix.IP_RECVTTL, 1},
	{unix.SOL_IP, unix.IP_MULTICAST_ALL, 1}, // the default of AF_INET sockets only
}

var recvOptions6 = []option{
	{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1},
	{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1},
	{unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
	{unix.SOL_IPV6, unix.IPV6_MULTICAST_ALL, 1},
	{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1},
}

var sendOptions4 = []option{
	{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
	{unix.SOL_IP, unix.IP_MULTICAST_TTL, MulticastTTL},
	{unix.SOL_IP, unix.IP_RECVERR, 1}, // otherwise a packet lost on output would count as sent
}

var sendOptions6 = []option{
	{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
	{unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, MulticastTTL},
	{unix.SOL_IPV6, unix.IPV6_RECVERR, 1},
	{unix.SOL_IPV6, unix.IPV6_AUTOFLOWLABEL, 0}, // 0, as on the fast path: routers may hash it
}

// openReceiver creates the receiving socket of a lane. It returns ErrPortTaken if another process uses
// the port.
func openReceiver(index int, cfg *Config, lane int) (bound, error) {
	fd, ipv6, err := newSocket(index, recvOptions4, recvOptions6)
	if err != nil {
		return bound{fd: -1}, err
	}
	err = refuseAll(fd)
	if err == nil && lane > 0 {
		err = errors.Join(joinLanes(fd), refuseMulticast(fd, ipv6))
	}
	if err == nil {
		err = bindError(bind(fd, ipv6, Port), index)
	}
	if err != nil {
		_ = unix.Close(fd)
		return bound{fd: -1}, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) // before Linux 5.0, trains arrive cut
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cmp.Or(cfg.RecvBuf, defaultRecvBuf))
	return bound{fd, ipv6, Port}, nil
}

// openSender creates the sending socket; see bindSource.
func openSender(index, buffer int, first uint16, step int) (bound, error) {
	fd, ipv6, err := newSocket(index, sendOptions4, sendOptions6)
	if err != nil {
		return bound{fd: -1}, err
	}
	port, err := bindSource(fd, ipv6, first, step)
	if err == nil {
		err = prepareSender(fd, ipv6, index)
	}
	if err != nil {
		_ = unix.Close(fd)
		return bound{fd: -1}, err
	}
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, cmp.Or(buffer, defaultSendBuf))
	// A file does not register a blocking descriptor with the runtime's poller, which the
	// kernel would wake for every packet that it has sent. No call on this socket blocks.
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return bound{fd: -1}, os.NewSyscallError("fcntl", err)
	}
	return bound{fd, ipv6, port}, nil
}

// newSocket creates a UDP socket on the netdev, for both families if possible.
func newSocket(index int, options4, options6 []option) (fd int, ipv6 bool, err error) {
	if fd, ipv6, err = dualSocket(); err != nil {
		return -1, false, os.NewSyscallError("socket", err)
	}
	options := append([]option{{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index}}, options4...)
	if ipv6 {
		options = append(options, option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 0})
		options = append(options, options6...)
	}
	if err := setOptions(fd, options); err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, ipv6, nil
}

func dualSocket() (fd int, ipv6 bool, err error) {
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err = unix.Socket(unix.AF_INET6, kind, 0)
	if err == nil || !errors.Is(err, unix.EAFNOSUPPORT) {
		return fd, true, err
	}
	fd, err = unix.Socket(unix.AF_INET, kind, 0)
	return fd, false, err
}

func setOptions(fd int, options []option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set socket option %d of level %d to %d: %w", o.name, o.level, o.value, err)
		}
	}
	return nil
}

func bind(fd int, ipv6 bool, port uint16) error {
	if ipv6 {
		return unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)})
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)})
}

// Source ports of RoCEv2 (annex A17.3.1: a flow's entropy in the dynamic range).
const (
	firstSource = 0xc000
	numSource   = 0x4000
)

// sourceFor returns the first source port to try: 14 bits of a hash (FNV-1a) of the MAC, so
// that it is the same after a restart.
func sourceFor(mac [6]byte) uint16 {
	h := uint32(2166136261)
	for _, b := range mac {
		h = (h ^ uint32(b)) * 16777619
	}
	return firstSource + uint16((h^h>>14)%numSource)
}

// bindSource binds to first, or to the next free source port at a multiple of step after it. If
// other processes use all of them, the kernel selects a port: RoCEv2 only recommends the range,
// and requires only that the port stays the same.
func bindSource(fd int, ipv6 bool, first uint16, step int) (uint16, error) {
	port := first
	for range numSource / step {
		err := bind(fd, ipv6, port)
		if !errors.Is(err, unix.EADDRINUSE) {
			return port, os.NewSyscallError("bind", err)
		}
		port = firstSource + (port-firstSource+uint16(step))%numSource
	}
	if err := bind(fd, ipv6, 0); err != nil {
		return 0, os.NewSyscallError("bind a source port", err)
	}
	local, err := unix.Getsockname(fd)
	switch a := local.(type) {
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	}
	return port, os.NewSyscallError("getsockname", err)
}

// prepareSender directs multicast to the netdev, and not to this host. It makes the kernel drop all
// datagrams to the source port.
func prepareSender(fd int, ipv6 bool, index int) error {
	if err := refuseAll(fd); err != nil {
		return err
	}
	mreq := &unix.IPMreqn{Ifindex: int32(index)}
	if err := unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, mreq); err != nil {
		return os.NewSyscallError("setsockopt IP_MULTICAST_IF", err)
	}
	options := []option{{unix.SOL_IP, unix.IP_MULTICAST_LOOP, 0}}
	if ipv6 {
		options = append(options,
			option{unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index},
			option{unix.SOL_IPV6, unix.IPV6_MULTICAST_LOOP, 0},
		)
	}
	return setOptions(fd, options)
}

// setBuffer sets a buffer size, beyond the system's limit if permitted. With a smaller
// buffer more packets are dropped.
func setBuffer(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// canSegment reports why the kernel cannot cut trains (UDP_SEGMENT, since Linux 4.18).
func (s *socket) canSegment() error {
	var err error
	cerr := s.raw.Control(func(fd uintptr) {
		_, err = unix.GetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT)
	})
	return errors.Join(cerr, os.NewSyscallError("getsockopt UDP_SEGMENT", err))
}

// own transfers the descriptor to a file, which the runtime's poller watches if the
// descriptor is non-blocking.
func own(fd int, ipv6 bool, port uint16) (*socket, error) {
	file := os.NewFile(uintptr(fd), "udp")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &socket{file: file, raw: raw, ipv6: ipv6, port: port}, nil
}
