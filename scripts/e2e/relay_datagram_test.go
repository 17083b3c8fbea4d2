package e2e

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"ipoibd/hca/roce"
)

// Lengths and offsets in a frame of the underlay (IEEE 802.3, RFC 791, 8200, 768).
const (
	etherLen  = 14
	ip4Len    = 20 // without options
	ip6Len    = 40
	udpLen    = 8
	udpSumAt  = 6
	ip4SumAt  = 10
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// datagram is an Ethernet frame of the underlay that carries a RoCEv2 datagram. The other
// fields are parts of the frame.
type datagram struct {
	frame []byte
	ip    []byte // from the IP header on
	udp   []byte // from the UDP header on
	roce  []byte // from the BTH to the ICRC
	path  roce.Path
}

// parseDatagram returns false if the frame is anything else.
func parseDatagram(frame []byte) (d datagram, ok bool) {
	if len(frame) < etherLen+ip4Len+udpLen {
		return d, false
	}
	d.frame, d.ip = frame, frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[etherLen-2:]) {
	case etherIPv4:
		if d.ip[0] != 0x45 || d.ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(d.ip[6:])&0x3fff != 0 {
			return d, false // options, another protocol, or a fragment
		}
		d.path.Src, d.path.Dst = netip.AddrFrom4([4]byte(d.ip[12:])), netip.AddrFrom4([4]byte(d.ip[16:]))
		d.path.ID = binary.BigEndian.Uint16(d.ip[4:])
		d.udp = d.ip[ip4Len:binary.BigEndian.Uint16(d.ip[2:])]
	case etherIPv6:
		if len(d.ip) < ip6Len+udpLen || d.ip[6] != unix.IPPROTO_UDP {
			return d, false
		}
		d.path.Src, d.path.Dst = netip.AddrFrom16([16]byte(d.ip[8:])), netip.AddrFrom16([16]byte(d.ip[24:]))
		d.udp = d.ip[ip6Len : ip6Len+int(binary.BigEndian.Uint16(d.ip[4:]))]
	default:
		return d, false
	}
	d.roce = d.udp[udpLen:]
	d.path.SrcPort = binary.BigEndian.Uint16(d.udp)
	return d, binary.BigEndian.Uint16(d.udp[2:]) == roce.Port
}

// copied returns a copy of the datagram that shares nothing with it.
func (d datagram) copied() datagram {
	c, _ := parseDatagram(append([]byte(nil), d.frame...))
	return c
}

// message returns the IPoIB message: its header, then the packet.
func (d datagram) message() []byte {
	end := len(d.roce) - roce.ICRCLen - int(d.roce[1]>>4&3)
	return d.roce[roce.HeaderLen:end]
}

// intact reports whether the ICRC is correct.
func (d datagram) intact() bool {
	match := new(roce.Verifier).Verify(&d.path, true, d.roce)
	return match != roce.NoMatch
}

// pseudo returns the sum of the pseudo-header (RFC 768, 8200) with a length, not folded.
func (d datagram) pseudo(length int) uint32 {
	addrs := d.ip[8:ip6Len]
	if d.path.Src.Is4() {
		addrs = d.ip[12:ip4Len]
	}
	return sum16(addrs) + unix.IPPROTO_UDP + uint32(length)
}

// putUDPSum writes the correct UDP checksum.
func (d datagram) putUDPSum() {
	field := d.udp[udpSumAt:udpLen]
	clear(field)
	sum := ^fold(d.pseudo(len(d.udp)) + sum16(d.udp))
	if sum == 0 {
		sum = 0xffff // 0 means none
	}
	binary.BigEndian.PutUint16(field, sum)
}

// sum16 adds 16-bit words; an odd byte is the upper half of the last one. The sum of a
// packet of 64 KB does not overflow.
func sum16(b []byte) (sum uint32) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
