package udp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control messages are laid out as in cmsg(3), in host byte order.

// appendControl appends a control message with room for a value of type T. It returns
// the slice and a pointer to the value in it, so the slice must not grow afterwards.
func appendControl[T any](b []byte, level, kind int32) ([]byte, *T) {
	var value T
	size := int(unsafe.Sizeof(value))
	at := len(b)
	b = b[:at+unix.CmsgSpace(size)]
	hdr := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
	hdr.Level, hdr.Type = level, kind
	hdr.SetLen(unix.CmsgLen(size))
	return b, (*T)(unsafe.Pointer(&b[at+unix.CmsgLen(0)]))
}

// cutControl splits the first control message off b; ok is false if b has no complete
// one.
func cutControl(b []byte) (hdr unix.Cmsghdr, data, rest []byte, ok bool) {
	if len(b) < unix.CmsgLen(0) {
		return hdr, nil, nil, false
	}
	hdr = *(*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	if n := uint64(hdr.Len); n < uint64(unix.CmsgLen(0)) || n > uint64(len(b)) { //nolint:unconvert // 32 bits elsewhere
		return hdr, nil, nil, false
	}
	data = b[unix.CmsgLen(0):hdr.Len]
	return hdr, data, b[min(unix.CmsgSpace(len(data)), len(b)):], true
}

// seen holds the values in the control messages of a received datagram.
type seen struct {
	dst      netip.Addr
	tos, ttl uint8
	segment  int // length of each datagram of a train but the last; 0: it is one datagram
}

// parseControl reads the control messages of a received datagram of either family. It
// skips malformed and unknown ones.
func parseControl(b []byte) (s seen) {
	for len(b) > 0 {
		hdr, data, rest, ok := cutControl(b)
		if !ok {
			break
		}
		s.note(hdr.Level, hdr.Type, data)
		b = rest
	}
	return s
}

func (s *seen) note(level, kind int32, data []byte) {
	switch {
	case level == unix.SOL_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		s.dst = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Addr)
	case level == unix.SOL_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		s.dst = netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Addr).Unmap()
	case level == unix.SOL_IP && kind == unix.IP_TOS && len(data) >= 1:
		s.tos = data[0]
	case level == unix.SOL_IP && kind == unix.IP_TTL, level == unix.SOL_IPV6 && kind == unix.IPV6_HOPLIMIT:
		s.ttl = lowByte(data)
	case level == unix.SOL_UDP && kind == unix.UDP_GRO && len(data) >= int(unsafe.Sizeof(int32(0))):
		s.segment = int(*(*int32)(unsafe.Pointer(&data[0])))
	case level == unix.SOL_IPV6 && kind == unix.IPV6_TCLASS:
		s.tos = lowByte(data)
	}
}

// lowByte returns the low byte of an int, or 0 if b is too short.
func lowByte(data []byte) uint8 {
	if len(data) < int(unsafe.Sizeof(int32(0))) {
		return 0
	}
	return uint8(*(*int32)(unsafe.Pointer(&data[0])))
}
