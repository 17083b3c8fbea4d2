package vnet

import (
	"encoding/binary"
	"errors"

	"ipoibd/hca/checksum"
)

// Errors of [Header.Check], one for each field. They are allocated once, because any
// process that may write to the host's end of a TAP chooses these fields for every frame
// (packet(7), PACKET_VNET_HDR).
var (
	ErrFlags     = errors.New("virtio header: unknown flag")
	ErrGSOType   = errors.New("virtio header: gso_type is not TCP or UDP segmentation of this frame's protocol")
	ErrGSOSize   = errors.New("virtio header: gso_size is zero")
	ErrHdrLen    = errors.New("virtio header: hdr_len is beyond the frame")
	ErrCsumStart = errors.New("virtio header: csum_start is not behind the IP header, " +
		"where the transport header begins")
	ErrCsumOffset = errors.New("virtio header: csum_offset is beyond the frame, or does not match the protocol")
	ErrNoCsum     = errors.New("virtio header: segmentation without a partial or verified checksum")
	ErrNetwork    = errors.New("virtio header: offload of a frame without a valid IP header, or of a fragment")
	ErrTransport  = errors.New("virtio header: segmentation of a frame without a valid transport header and payload")
	ErrSYN        = errors.New("virtio header: segmentation of a frame with SYN or RST")
)

// Offsets in an Ethernet frame (IEEE 802.3, RFC 791 section 3.1, RFC 8200 sections 3 and 4.3,
// RFC 9293 section 3.1, RFC 768).
const (
	etherType   = 12
	etherLen    = 14
	typeIPv4    = 0x0800
	typeIPv6    = 0x86dd
	ipv4MinLen  = 20
	ipv4Frag    = etherLen + 6
	ipv4Proto   = etherLen + 9
	ipv4Frags   = 0x3fff // more fragments, and the fragment's offset
	ipv6Len     = 40
	ipv6Next    = etherLen + 6
	extLen      = 8 // the shortest IPv6 extension header
	protoTCP    = 6
	protoUDP    = 17
	tcpMinLen   = 20
	tcpDataOff  = 12
	tcpFlags    = 13
	tcpSYNRST   = 1<<1 | 1<<2
	udpLen      = 8
	extHop      = 0
	extRouting  = 43
	extDest     = 60
	maxExtended = 8 // more than a sender puts in a packet (RFC 8200 section 4.1)
)

// Offsets of the checksum from the start of the transport header.
const (
	CsumOffsetTCP = 16 // RFC 9293 section 3.1
	CsumOffsetUDP = 6  // RFC 768
)

// Check validates every field of the header that affects how the frame is handled, so that no
// later step reads or writes outside the part of the frame to which the field may refer.
// frame is an Ethernet frame without its virtio header. If the frame is to be segmented,
// headers is the length of its headers in bytes, from Ethernet to TCP or UDP; hdr_len is
// only a hint. Otherwise headers is 0.
//
// A frame with a partial checksum is IPv4 or IPv6. Its checksum follows the IP header, but not
// necessarily in a transport header right after it: the inner packet of a tunnel also has one.
// So call [Header.Complete] before anything else inspects the frame, or the inspected bytes
// differ from those that are sent. A frame that is to be segmented is TCP or UDP right after
// its IP header, or after IPv6 extension headers that each segment repeats. Its checksum is partial,
// or a device that has joined the segments has verified it (LRO, CHECKSUM_UNNECESSARY), which suffices
// if there are no extension headers: each segment gets a checksum of its own.
//
// Check refuses segmentation with ECN and fragmentation of UDP, which a TAP passes only if
// TUN_F_TSO_ECN or TUN_F_UFO is set. It also refuses several segments with SYN or RST, which no
// kernel sends. It limits neither the number of segments nor the length of the headers.
func (h Header) Check(frame []byte) (headers int, err error) {
	if h.Flags&^(NeedsCsum|DataValid) != 0 {
		return 0, ErrFlags
	}
	if h.GSOType == GSONone {
		if h.Flags&NeedsCsum == 0 {
			return 0, nil
		}
		network := networkEnd(frame)
		if network == 0 {
			return 0, ErrNetwork
		}
		return 0, h.checkCsum(network, len(frame))
	}
	switch {
	case h.Flags == 0:
		return 0, ErrNoCsum
	case h.GSOSize == 0:
		return 0, ErrGSOSize
	case int(h.HdrLen) > len(frame):
		return 0, ErrHdrLen
	}
	return h.checkLarge(frame)
}

// checkCsum checks the position of the partial checksum of a frame of n bytes, whose IP
// header ends at network.
func (h Header) checkCsum(network, n int) error {
	switch start := int(h.CsumStart); {
	case start < network || start >= n:
		return ErrCsumStart
	case start+int(h.CsumOffset)+2 > n:
		return ErrCsumOffset
	}
	return nil
}

// checkLarge checks a frame that is to be segmented and returns the length of its headers.
func (h Header) checkLarge(frame []byte) (headers int, err error) {
	if networkEnd(frame) == 0 {
		return 0, ErrNetwork
	}
	proto, transport := uint8(0), 0
	ipv6 := binary.BigEndian.Uint16(frame[etherType:]) == typeIPv6
	if ipv6 {
		proto, transport = behindExtensions(frame)
	} else if binary.BigEndian.Uint16(frame[ipv4Frag:])&ipv4Frags == 0 {
		proto, transport = frame[ipv4Proto], networkEnd(frame)
	}
	if transport == 0 {
		return 0, ErrNetwork
	}
	offset := uint16(CsumOffsetTCP)
	switch {
	case h.GSOType == GSOTCPv4 && !ipv6 && proto == protoTCP, h.GSOType == GSOTCPv6 && ipv6 && proto == protoTCP:
		if len(frame) < transport+tcpMinLen {
			return 0, ErrTransport
		}
		headers = transport + int(frame[transport+tcpDataOff]>>4)*4
	case h.GSOType == GSOUDPL4 && proto == protoUDP:
		headers, offset = transport+udpLen, CsumOffsetUDP
	default:
		return 0, ErrGSOType
	}
	switch {
	case len(frame) <= headers, proto == protoTCP && headers < transport+tcpMinLen:
		return 0, ErrTransport
	case proto == protoTCP && frame[transport+tcpFlags]&tcpSYNRST != 0 && len(frame)-headers > int(h.GSOSize):
		return 0, ErrSYN
	case h.Flags&NeedsCsum == 0 && transport != networkEnd(frame):
		return 0, ErrNoCsum
	case h.Flags&NeedsCsum == 0:
		return headers, nil
	case int(h.CsumStart) != transport:
		return 0, ErrCsumStart
	case h.CsumOffset != offset:
		return 0, ErrCsumOffset
	}
	return headers, nil
}

// networkEnd returns where the IP header of a frame ends, without IPv6 extension headers, or
// 0 if the frame has no complete IP header of the version that its EtherType states.
func networkEnd(frame []byte) int {
	if len(frame) < etherLen+ipv4MinLen {
		return 0
	}
	end, version := 0, frame[etherLen]>>4
	switch typ := binary.BigEndian.Uint16(frame[etherType:]); {
	case typ == typeIPv4 && version == 4:
		if end = etherLen + int(frame[etherLen]&15)*4; end < etherLen+ipv4MinLen {
			return 0
		}
	case typ == typeIPv6 && version == 6:
		end = etherLen + ipv6Len
	}
	if end > len(frame) {
		return 0
	}
	return end
}

// behindExtensions returns the upper-layer protocol of an IPv6 frame with a complete header,
// and where its header begins: 0 if that cannot be found. The payload of other headers than
// these three is not the same in each segment.
func behindExtensions(frame []byte) (proto uint8, start int) {
	proto, start = frame[ipv6Next], etherLen+ipv6Len
	for range maxExtended {
		if proto != extHop && proto != extRouting && proto != extDest {
			return proto, start
		}
		if len(frame) < start+extLen {
			return 0, 0
		}
		proto, start = frame[start], start+extLen*(1+int(frame[start+1]))
	}
	return 0, 0
}

// Complete fills in the partial checksum, in a frame for which Check returned no error. It
// does nothing if the header requests none. The checksum field of such a frame holds the
// sum of the pseudo-header.
func (h Header) Complete(frame []byte) {
	if h.Flags&NeedsCsum == 0 {
		return
	}
	sum := ^checksum.Sum(frame[h.CsumStart:], 0)
	if sum == 0 {
		sum = 0xffff // zero would mean that a UDP datagram has no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(frame[int(h.CsumStart)+int(h.CsumOffset):], sum)
}
