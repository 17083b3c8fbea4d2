package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr has room for the address of either family.
type sockaddr = unix.RawSockaddrInet6

// bigEndian converts a port to or from the kernel's byte order.
func bigEndian(port uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(port >> 8), byte(port)})
}

// setAddr4 writes an IPv4 address and returns its length.
func setAddr4(sa *sockaddr, a netip.Addr, port uint16) uint32 {
	sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
	sa4.Family, sa4.Port, sa4.Addr = unix.AF_INET, bigEndian(port), a.As4()
	return unix.SizeofSockaddrInet4
}

// setAddr6 writes an IPv6 address on the netdev, with the port of RoCEv2, and returns its length.
func setAddr6(sa *sockaddr, a netip.Addr, index int) uint32 {
	sa.Family, sa.Port, sa.Addr = unix.AF_INET6, bigEndian(Port), a.As16()
	sa.Flowinfo, sa.Scope_id = 0, uint32(index)
	return unix.SizeofSockaddrInet6
}

// getAddr reads an address of either family. It returns a mapped one as IPv4.
func getAddr(sa *sockaddr) (netip.Addr, uint16) {
	switch sa.Family {
	case unix.AF_INET:
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrFrom4(sa4.Addr), bigEndian(sa4.Port)
	case unix.AF_INET6:
		return netip.AddrFrom16(sa.Addr).Unmap(), bigEndian(sa.Port)
	}
	return netip.Addr{}, 0
}
