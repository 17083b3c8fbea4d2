package coalesce

import (
	"encoding/binary"

	"ipoibd/hca/join"
	"ipoibd/ud/vnet"
)

// TCP flags (RFC 9293 section 3.1, RFC 3168 section 6.1).
const (
	flagPSH = 0x08
	flagACK = 0x10
	flagECE = 0x40
)

// segment describes a frame of the tests. Its zero value is a TCP segment over IPv4 without
// payload. Frames are built from it with naive code that shares nothing with the package.
type segment struct {
	ipv6, udp    bool
	host         uint8 // last byte of the source address
	port         uint16
	group        bool  // to an Ethernet group
	mac          uint8 // of the Ethernet source
	tos, ttl     uint8
	label        uint32
	id, frag     uint16
	ipOptions    []byte
	ext          []byte // IPv6 extension headers in front of next
	seq, ack     uint32
	window, urg  uint16
	flags        uint8 // in addition to ACK
	noACK        bool
	reserved     uint8  // bits next to the length of the TCP header; one is AE
	options      []byte // of TCP
	payload      []byte
	noSum        bool // UDP without checksum
	badSum       bool
	badIPSum     bool
	longer       int    // added to the length field of IP
	longerUDP    int    // added to that of UDP
	padding      []byte // behind the packet, in addition to Ethernet's
	verifiedByHW bool
}

// frame returns the frame with its virtio header.
func (s segment) frame() []byte {
	f := make([]byte, 24)
	if s.verifiedByHW {
		f[0] = byte(vnet.DataValid)
	}
	copy(f[10:], "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02")
	if s.group {
		f[10] = 1
	}
	f[20] = s.mac
	t := s.transport()
	proto := uint8(join.TCP)
	if s.udp {
		proto = join.UDP
	}
	if s.ipv6 {
		f[22], f[23] = 0x86, 0xdd
		ip := make([]byte, 40)
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(s.tos)<<20|s.label)
		binary.BigEndian.PutUint16(ip[4:], uint16(len(s.ext)+len(t)+s.longer))
		ip[6], ip[7] = proto, s.ttl
		if len(s.ext) > 0 {
			ip[6] = 60
		}
		ip[8], ip[23], ip[24], ip[39] = 0xfd, s.host, 0xfd, 0xfe
		s.sum(t, ip[8:40], proto)
		f = append(append(f, ip...), s.ext...)
	} else {
		f[22], f[23] = 0x08, 0x00
		ip := append(make([]byte, 20), s.ipOptions...)
		ip[0], ip[1], ip[8], ip[9] = 0x40|byte(len(ip)/4), s.tos, s.ttl, proto
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(t)+s.longer))
		binary.BigEndian.PutUint16(ip[4:], s.id)
		binary.BigEndian.PutUint16(ip[6:], s.frag)
		copy(ip[12:], []byte{10, 0, 0, s.host, 10, 0, 0, 254})
		binary.BigEndian.PutUint16(ip[10:], ^naive(ip, 0))
		if s.badIPSum {
			ip[10]++
		}
		s.sum(t, ip[12:20], proto)
		f = append(f, ip...)
	}
	f = append(f, t...)
	if short := 10 + 60 - len(f); short > 0 {
		f = append(f, make([]byte, short)...)
	}
	return append(f, s.padding...)
}

// transport returns the TCP segment or UDP datagram, without checksum.
func (s segment) transport() []byte {
	if s.udp {
		t := binary.BigEndian.AppendUint16(nil, s.port)
		t = append(t, 0, 53)
		t = binary.BigEndian.AppendUint16(t, uint16(8+len(s.payload)+s.longerUDP))
		return append(append(t, 0, 0), s.payload...)
	}
	t := append(make([]byte, 20), s.options...)
	binary.BigEndian.PutUint16(t, s.port)
	t[3] = 80
	binary.BigEndian.PutUint32(t[4:], s.seq)
	binary.BigEndian.PutUint32(t[8:], s.ack)
	t[12], t[13] = byte(len(t)/4)<<4|s.reserved, s.flags|flagACK
	if s.noACK {
		t[13] &^= flagACK
	}
	binary.BigEndian.PutUint16(t[14:], s.window)
	binary.BigEndian.PutUint16(t[18:], s.urg)
	return append(t, s.payload...)
}

// sum fills in the checksum of a TCP segment or UDP datagram.
func (s segment) sum(t, addrs []byte, proto uint8) {
	at := 16
	if s.udp {
		at = 6
	}
	if s.noSum {
		return
	}
	sum := ^naive(t, naive(addrs, naive([]byte{0, proto, byte(len(t) >> 8), byte(len(t))}, 0)))
	if s.udp && sum == 0 {
		sum = 0xffff
	}
	if s.badSum {
		sum ^= 0x0100
	}
	binary.BigEndian.PutUint16(t[at:], sum)
}

// naive returns the one's complement sum of big-endian words, one by one.
func naive(b []byte, sum uint16) uint16 {
	s := uint32(sum)
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i%2))
		s = s>>16 + s&0xffff
	}
	return uint16(s>>16 + s&0xffff)
}

// cut is the reference of segmentation: it returns the Ethernet frames into which a host
// cuts a frame (tcp_gso_segment, __udp_gso_segment, inet_gso_segment, ipv6_gso_segment).
func cut(frame []byte) [][]byte {
	h, _ := vnet.Parse(frame)
	frame = frame[10:]
	if h.GSOType == vnet.GSONone {
		return [][]byte{frame}
	}
	ipv6, transport := frame[12] == 0x86, int(h.CsumStart)
	headers, rest := frame[:h.HdrLen], frame[h.HdrLen:]
	var out [][]byte
	for k := 0; len(rest) > 0; k++ {
		n := min(int(h.GSOSize), len(rest))
		f := append(append([]byte{}, headers...), rest[:n]...)
		rest = rest[n:]
		t, addrs, proto := f[transport:], f[26:34], f[23]
		if ipv6 {
			addrs, proto = f[22:54], f[20]
			binary.BigEndian.PutUint16(f[18:], uint16(len(t)))
		} else {
			binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
			binary.BigEndian.PutUint16(f[18:], binary.BigEndian.Uint16(f[18:])+uint16(k))
			f[24], f[25] = 0, 0
			binary.BigEndian.PutUint16(f[24:], ^naive(f[14:34], 0))
		}
		if proto == join.TCP {
			binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(k)*uint32(h.GSOSize))
			if len(rest) > 0 {
				t[13] &^= flagPSH | 1 // FIN
			}
			if k > 0 {
				t[13] &^= 0x80 // CWR
			}
		} else {
			binary.BigEndian.PutUint16(t[4:], uint16(len(t)))
		}
		at := int(h.CsumOffset)
		t[at], t[at+1] = 0, 0
		sum := ^naive(t, naive(addrs, naive([]byte{0, proto, byte(len(t) >> 8), byte(len(t))}, 0)))
		if proto == join.UDP && sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(t[at:], sum)
		out = append(out, f)
	}
	return out
}
