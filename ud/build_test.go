package ud

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// putGRH writes the IPv6 layout of a GRH area.
func putGRH(buf []byte, sgid, dgid hca.GID) {
	clear(buf[:hca.GRHLen])
	buf[0] = 0x60
	copy(buf[8:], sgid[:])
	copy(buf[24:], dgid[:])
}

// frame returns virtio header, Ethernet header and payload.
func frame(dst, src ipoib.MAC, typ ipoib.EtherType, payload []byte) []byte {
	f := make([]byte, vnet.HeaderLen, txPayload+len(payload))
	f = append(append(f, dst[:]...), src[:]...)
	f = binary.BigEndian.AppendUint16(f, uint16(typ))
	return append(f, payload...)
}

// ipv4 returns a packet of n bytes to dst, with counting bytes as its payload.
func ipv4(dst string, n int) []byte {
	p := make([]byte, n)
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(n))
	src, to := netip.MustParseAddr("10.0.0.1").As4(), netip.MustParseAddr(dst).As4()
	copy(p[12:], src[:])
	copy(p[16:], to[:])
	for i := 20; i < n; i++ {
		p[i] = byte(i)
	}
	return p
}

// ipv6 returns a packet of n bytes to dst with the given next header and type.
func ipv6(dst string, next, icmpType, hops byte, n int) []byte {
	p := make([]byte, n)
	p[0], p[6], p[7] = 0x60, next, hops
	binary.BigEndian.PutUint16(p[4:], uint16(n-40))
	src, to := netip.MustParseAddr("fe80::1").As16(), netip.MustParseAddr(dst).As16()
	copy(p[8:], src[:])
	copy(p[24:], to[:])
	if n > 40 {
		p[40] = icmpType
	}
	return p
}

func udp6(dst string) []byte { return ipv6(dst, 17, 0, 64, 60) }
func ns6(dst string) []byte  { return ipv6(dst, 58, 135, 255, 72) }

// msg returns an IPoIB message.
func msg(typ ipoib.EtherType, payload []byte) []byte {
	m := make([]byte, ipoib.HeaderLen, ipoib.HeaderLen+len(payload))
	ipoib.PutHeader(m, typ)
	return append(m, payload...)
}
