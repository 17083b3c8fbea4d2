package vnet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderLen is the length of the header in bytes.
const HeaderLen = 10

// ErrTruncated means that there are fewer than HeaderLen bytes.
var ErrTruncated = errors.New("truncated")

// errParse is allocated once, because it may be returned for every frame.
var errParse = fmt.Errorf("parse virtio header: %w", ErrTruncated)

// Flags of a header (VIRTIO_NET_HDR_F_*).
type Flags uint8

// Flags.
const (
	NeedsCsum Flags = 1 << 0 // the checksum at CsumStart + CsumOffset must be filled in
	DataValid Flags = 1 << 1 // the checksum was verified
)

// GSOType is the way to segment a large frame (VIRTIO_NET_HDR_GSO_*).
type GSOType uint8

// GSO types. GSOECN is a flag combined with GSOTCPv4 or GSOTCPv6.
const (
	GSONone  GSOType = 0
	GSOTCPv4 GSOType = 1
	GSOUDP   GSOType = 3 // UDP fragmentation of IPv4 datagrams
	GSOTCPv6 GSOType = 4
	GSOUDPL4 GSOType = 5 // UDP segmentation
	GSOECN   GSOType = 0x80
)

// Header is a struct virtio_net_hdr. Offsets count from the start of the
// Ethernet frame. The values are unchecked input: check them against the
// frame's length before use.
type Header struct {
	Flags      Flags
	GSOType    GSOType
	HdrLen     uint16 // length of a large frame's headers in bytes; a hint
	GSOSize    uint16 // payload bytes of each segment
	CsumStart  uint16 // the checksum covers the frame from here
	CsumOffset uint16 // of the checksum field, from CsumStart
}

// Parse parses the first HeaderLen bytes of src. Errors: ErrTruncated.
func Parse(src []byte) (Header, error) {
	if len(src) < HeaderLen {
		return Header{}, errParse
	}
	return Header{
		Flags:      Flags(src[0]),
		GSOType:    GSOType(src[1]),
		HdrLen:     binary.NativeEndian.Uint16(src[2:]),
		GSOSize:    binary.NativeEndian.Uint16(src[4:]),
		CsumStart:  binary.NativeEndian.Uint16(src[6:]),
		CsumOffset: binary.NativeEndian.Uint16(src[8:]),
	}, nil
}

// Put writes h into the first HeaderLen bytes of dst and panics if dst is
// shorter.
func (h Header) Put(dst []byte) {
	_ = dst[HeaderLen-1]
	dst[0] = byte(h.Flags)
	dst[1] = byte(h.GSOType)
	binary.NativeEndian.PutUint16(dst[2:], h.HdrLen)
	binary.NativeEndian.PutUint16(dst[4:], h.GSOSize)
	binary.NativeEndian.PutUint16(dst[6:], h.CsumStart)
	binary.NativeEndian.PutUint16(dst[8:], h.CsumOffset)
}
