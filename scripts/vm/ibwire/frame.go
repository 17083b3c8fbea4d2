package ibwire

import "encoding/binary"

// EtherTypes, from IEEE 802's range for local experiments.
const (
	TypePacket  = 0x88b5
	TypeControl = 0x88b6
)

// Lengths of Ethernet frames in bytes (IEEE 802.3), without the FCS.
const (
	etherHeader = 14
	etherMin    = 60
)

// MaxFrame bounds a frame in bytes: a packet with the longest payload.
const MaxFrame = etherHeader + lrhLen + grhLen + bthLen + dethLen + MaxPayload + icrcLen

// Frame returns an Ethernet frame from the switch to an HCA, padded to the minimal length.
func Frame(etherType uint16, body []byte) []byte {
	frame := make([]byte, max(etherMin, etherHeader+len(body)))
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01") // to all, from a local address
	binary.BigEndian.PutUint16(frame[12:], etherType)
	copy(frame[etherHeader:], body)
	return frame
}

// Split returns the EtherType and the body of a frame; the body may end with Ethernet's padding.
// It returns false for a frame without a complete header.
func Split(frame []byte) (etherType uint16, body []byte, ok bool) {
	if len(frame) < etherHeader {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(frame[12:]), frame[etherHeader:], true
}
