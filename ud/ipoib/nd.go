package ipoib

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Neighbour Discovery message types (RFC 4861 section 4).
const (
	NDRouterSolicit   uint8 = 133
	NDRouterAdvert    uint8 = 134
	NDNeighborSolicit uint8 = 135
	NDNeighborAdvert  uint8 = 136
	NDRedirect        uint8 = 137
)

// Flags of a neighbour advertisement (RFC 4861 section 4.4).
const (
	NAFlagRouter    uint8 = 0x80
	NAFlagSolicited uint8 = 0x40
	NAFlagOverride  uint8 = 0x20
)

// Layout of an IPv6 packet that holds an ND message, offsets in bytes (RFC 8200
// section 3, RFC 4861 section 4).
const (
	ipv6PayloadLen = 4
	ipv6NextHeader = 6
	ipv6HopLimit   = 7
	ndType         = ipv6HeaderLen
	ndCode         = ipv6HeaderLen + 1
	ndChecksum     = ipv6HeaderLen + 2
	ndFlags        = ipv6HeaderLen + 4
	ndLifetime     = ipv6HeaderLen + 6 // of a router
	ndTarget       = ipv6HeaderLen + 8
	ndRedirectDest = ipv6HeaderLen + 24

	protoICMPv6 = 58
	ndHopLimit  = 255
)

// ndFixedLen returns the length of a message of this type before its options,
// or 0 if the type is not one of Neighbour Discovery.
func ndFixedLen(msgType uint8) int {
	switch msgType {
	case NDRouterSolicit:
		return 8
	case NDRouterAdvert:
		return 16
	case NDNeighborSolicit, NDNeighborAdvert:
		return 24
	case NDRedirect:
		return 40
	}
	return 0
}

// ND is the part of a Neighbour Discovery message that concerns link-layer
// addresses.
type ND struct {
	Type     uint8
	Flags    uint8  // of a neighbour advertisement; else 0
	Lifetime uint16 // of a router advertisement, in seconds; 0: the sender is no default router
	Src, Dst netip.Addr
	Target   netip.Addr // of NS, NA and Redirect; else the zero Addr
	Link     LinkOption // the link-layer address option that this message type defines
	links    int        // number of link-layer address options of any type
}

// IsND reports whether an IPv6 packet is an ND message directly behind the fixed
// header, with the hop limit of a message that has not crossed a router. It is
// cheap enough for every frame.
func IsND(packet []byte) bool {
	return len(packet) > ndType &&
		packet[ipv6NextHeader] == protoICMPv6 &&
		packet[ipv6HopLimit] == ndHopLimit &&
		packet[0]>>4 == 6 &&
		ndFixedLen(packet[ndType]) != 0
}

// IsRouterND reports whether a packet is an ND message that only routers send: a router advertisement or a
// Redirect. Hosts change their routes and addresses by them (RFC 6105).
func IsRouterND(t EtherType, packet []byte) bool {
	return t == EtherTypeIPv6 && IsND(packet) && (packet[ndType] == NDRouterAdvert || packet[ndType] == NDRedirect)
}

// ParseND parses an IPv6 packet that holds an ND message whose link-layer
// address options have the given form. Link.Addr aliases packet; bytes behind
// the IPv6 payload are ignored. Errors: ErrTruncated, ErrFormat, ErrHopLimit,
// ErrChecksum, ErrOption, ErrInvalid. The checksum must be filled in: if the
// host leaves it to the device, the caller must complete it first.
func ParseND(packet []byte, form Form) (ND, error) {
	nd, _, err := parseND(packet, form)
	if err != nil {
		return ND{}, fmt.Errorf("parse ND: %w", err)
	}
	return nd, nil
}

// parseND also returns the packet without any bytes behind its payload.
func parseND(packet []byte, form Form) (ND, []byte, error) {
	packet, err := trimND(packet)
	if err != nil {
		return ND{}, nil, err
	}
	nd := ndFields(packet)
	if err := nd.scanOptions(ndOptions(packet), form); err != nil {
		return ND{}, nil, err
	}
	if !nd.valid(packet) {
		return nd, packet, ErrInvalid
	}
	return nd, packet, nil
}

// trimND checks everything before the options, and the checksum, and returns
// the packet without any bytes behind its payload.
func trimND(packet []byte) ([]byte, error) {
	switch {
	case len(packet) < ipv6HeaderLen:
		return nil, ErrTruncated
	case packet[0]>>4 != 6 || packet[ipv6NextHeader] != protoICMPv6:
		return nil, ErrFormat
	case packet[ipv6HopLimit] != ndHopLimit:
		return nil, ErrHopLimit
	}
	n := ipv6HeaderLen + int(binary.BigEndian.Uint16(packet[ipv6PayloadLen:]))
	if n > len(packet) {
		return nil, ErrTruncated
	}
	return packet[:n], checkND(packet[:n])
}

func checkND(packet []byte) error {
	if len(packet) < ndFlags {
		return ErrTruncated
	}
	fixed := ndFixedLen(packet[ndType])
	switch {
	case fixed == 0 || packet[ndCode] != 0:
		return ErrFormat
	case len(packet) < ipv6HeaderLen+fixed:
		return ErrTruncated
	case icmp6Checksum(packet) != 0:
		return ErrChecksum
	}
	return nil
}

// ndOptions returns the options of a message that trimND has accepted.
func ndOptions(packet []byte) []byte {
	return packet[ipv6HeaderLen+ndFixedLen(packet[ndType]):]
}

func ndFields(packet []byte) ND {
	nd := ND{
		Type: packet[ndType],
		Src:  netip.AddrFrom16([16]byte(packet[ipv6Source:])),
		Dst:  netip.AddrFrom16([16]byte(packet[ipv6Dest:])),
	}
	switch nd.Type {
	case NDRouterAdvert:
		nd.Lifetime = binary.BigEndian.Uint16(packet[ndLifetime:])
	case NDNeighborAdvert:
		nd.Flags = packet[ndFlags]
		fallthrough
	case NDNeighborSolicit, NDRedirect:
		nd.Target = netip.AddrFrom16([16]byte(packet[ndTarget:]))
	}
	return nd
}
