package ipoib

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca/checksum"
)

// Messages about multicast groups: IGMP (RFC 1112, RFC 2236, RFC 3376 section 4) and MLD, which is ICMPv6 (RFC 2710
// section 3, RFC 3810 section 5). The types of MLD stand behind a hop-by-hop options header.
const (
	igmpQuery    = 0x11
	igmpReportV1 = 0x12
	igmpReportV2 = 0x16
	igmpLeave    = 0x17
	igmpReportV3 = 0x22
	mldQuery     = 130
	mldReport    = 131
	mldDone      = 132
	mldReportV2  = 143

	protoIGMP     = 2
	igmpMinLen    = 8
	igmpGroup     = 4 // offset in bytes
	mldGroup      = 8 // the same of MLD
	recordsOffset = 8 // in a report of the latest version
	mldHopLimit   = 1
)

// Types of a group record (RFC 3376 section 4.2.12, RFC 3810 section 5.2.12).
const (
	recordIsInclude = 1
	recordIsExclude = 2
	recordToInclude = 3
	recordToExclude = 4
	recordAllow     = 5
)

// membershipMessage returns the IGMP or MLD message of a packet. It returns nil for a packet that is shorter than its
// message.
func membershipMessage(t EtherType, packet []byte) (message []byte) {
	switch {
	case t == EtherTypeIPv4 && isVersion(packet, 4, ipv4HeaderLen) && packet[ipv4Protocol] == protoIGMP:
		header, total := int(packet[0]&15)*4, int(binary.BigEndian.Uint16(packet[ipv4Total:]))
		if header < ipv4HeaderLen || total < header+igmpMinLen || total > len(packet) ||
			binary.BigEndian.Uint16(packet[ipv4Fragment:])&ipv4FragmentOf != 0 {
			return nil
		}
		return packet[header:total]
	case t == EtherTypeIPv6 && isVersion(packet, 6, ipv6HeaderLen+minExtensionLen) &&
		packet[ipv6NextHeader] == extHopByHop && packet[ipv6HeaderLen] == protoICMPv6:
		header := ipv6HeaderLen + extensionLen(extHopByHop, packet[ipv6HeaderLen:])
		total := ipv6HeaderLen + int(binary.BigEndian.Uint16(packet[ipv6PayloadLen:]))
		if total < header+igmpMinLen || total > len(packet) {
			return nil
		}
		switch packet[header] {
		case mldQuery, mldReport, mldDone, mldReportV2:
			return packet[header:total]
		}
	}
	return nil
}

// IsMembership reports whether a packet is an IGMP or MLD message. It is cheap enough for every frame.
func IsMembership(t EtherType, packet []byte) bool { return membershipMessage(t, packet) != nil }

// IsMembershipQuery reports whether a packet is a query of IGMP or MLD. It is cheap enough for every frame.
func IsMembershipQuery(t EtherType, packet []byte) bool {
	m := membershipMessage(t, packet)
	return m != nil && (t == EtherTypeIPv4 && m[0] == igmpQuery || t == EtherTypeIPv6 && m[0] == mldQuery)
}

// Membership is what an IGMP or MLD message says about groups.
type Membership struct {
	Query  bool         // asks the members of all groups
	Answer bool         // may answer a query: it reports no change
	Joined []netip.Addr // groups that the sender is a member of
	Left   []netip.Addr // groups that it has left
}

// ParseMembership parses an IGMP or MLD message. It takes the groups from at most limit records. A message of an unknown
// type is an empty one, and so is a query that stations do not answer. Errors: ErrTruncated, ErrFormat, also for a packet
// for which [IsMembership] returns false, ErrChecksum.
func ParseMembership(t EtherType, packet []byte, limit int) (m Membership, err error) {
	b := membershipMessage(t, packet)
	if b == nil {
		return m, ErrFormat
	}
	pseudo, at, size := uint16(0), igmpGroup, 4
	if t == EtherTypeIPv6 {
		pseudo, at, size = checksum.Pseudo(packet[ipv6Source:ipv6HeaderLen], protoICMPv6, len(b)), mldGroup, 16
	}
	switch {
	case checksum.Sum(b, pseudo) != 0xffff:
		return m, ErrChecksum
	case t == EtherTypeIPv6 && packet[ipv6HopLimit] != mldHopLimit:
		return m, ErrFormat
	case b[0] == igmpReportV3 || b[0] == mldReportV2:
		return m, m.parseRecords(b, size, limit)
	case len(b) < at+size:
		return m, ErrTruncated
	}
	group, _ := netip.AddrFromSlice(b[at:][:size])
	switch b[0] {
	case igmpQuery, mldQuery:
		m.Query = group.IsUnspecified() && asksAll(t, packet)
	case igmpReportV1, igmpReportV2, mldReport:
		m.Answer = true
		m.member(group, true)
	case igmpLeave, mldDone:
		m.member(group, false)
	}
	return m, nil
}

// asksAll reports whether the addresses of a query are those of a general one. Stations ignore one of MLD that is not
// from a link-local address (RFC 3810 section 5.1.14).
func asksAll(t EtherType, packet []byte) bool {
	from, _ := SourceIP(t, packet)
	to, _ := DestIP(t, packet)
	return to == allSystems || to == allNodes && from.IsLinkLocalUnicast()
}

// parseRecords parses the group records of a report, whose addresses have size bytes.
func (m *Membership) parseRecords(b []byte, size, limit int) error {
	records := b[recordsOffset:]
	m.Answer = true
	for range min(int(binary.BigEndian.Uint16(b[6:])), limit) {
		if len(records) < 4+size {
			return ErrTruncated
		}
		sources := int(binary.BigEndian.Uint16(records[2:]))
		n := 4 + size + sources*size + 4*int(records[1])
		if len(records) < n {
			return ErrTruncated
		}
		group, _ := netip.AddrFromSlice(records[4 : 4+size])
		m.Answer = m.Answer && records[0] <= recordIsExclude
		switch records[0] {
		case recordIsExclude, recordToExclude, recordAllow:
			m.member(group, true)
		case recordIsInclude, recordToInclude: // only these sources
			m.member(group, sources > 0)
		}
		records = records[n:]
	}
	return nil
}

// member adds a group to one of the lists. All nodes are members of the groups of all nodes.
func (m *Membership) member(group netip.Addr, joined bool) {
	switch {
	case !group.IsMulticast() || group.Is4In6() || group == allSystems || group.IsInterfaceLocalMulticast() || group == allNodes:
	case joined:
		m.Joined = append(m.Joined, group)
	default:
		m.Left = append(m.Left, group)
	}
}

var (
	allSystems = netip.AddrFrom4([4]byte{224, 0, 0, 1})
	allNodes   = netip.IPv6LinkLocalAllNodes()
)

// AppendMembershipQuery appends an IP packet, of src's family, that asks all nodes for the groups of which they are
// members: a query of IGMP version 3 or MLD version 2, to be answered within a second. Receivers accept one of MLD only
// from a link-local address.
func AppendMembershipQuery(dst []byte, src netip.Addr) []byte {
	start := len(dst)
	const robustness, interval = 2, 125 // s; RFC 3376 sections 8.1 and 8.2
	if src.Is4() {
		a, to := src.As4(), allSystems.As4()
		// With the option "router alert" (RFC 2113); precedence 6, TTL 1.
		dst = append(dst, 0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, protoIGMP, 0, 0)
		dst = append(append(append(dst, a[:]...), to[:]...), 0x94, 4, 0, 0)
		header := dst[start:]
		binary.BigEndian.PutUint16(header[10:], ^checksum.Sum(header, 0))
		dst = append(dst, igmpQuery, 10, 0, 0, 0, 0, 0, 0, robustness, interval, 0, 0)
		message := dst[start+24:]
		binary.BigEndian.PutUint16(message[2:], ^checksum.Sum(message, 0))
		return dst
	}
	dst = append(dst, 0x60, 0, 0, 0, 0, 36, extHopByHop, mldHopLimit)
	dst = appendIPv6(appendIPv6(dst, src), allNodes)
	dst = append(dst, protoICMPv6, 0, 5, 2, 0, 0, 1, 0) // router alert (RFC 2711), padding
	dst = append(dst, mldQuery, 0, 0, 0, 1000>>8, 1000&255, 0, 0)
	dst = appendIPv6(dst, netip.IPv6Unspecified())
	dst = append(dst, robustness, interval, 0, 0)
	packet := dst[start:]
	message := packet[ipv6HeaderLen+minExtensionLen:]
	pseudo := checksum.Pseudo(packet[ipv6Source:ipv6HeaderLen], protoICMPv6, len(message))
	binary.BigEndian.PutUint16(message[2:], ^checksum.Sum(message, pseudo))
	return dst
}
