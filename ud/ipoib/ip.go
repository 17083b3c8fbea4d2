package ipoib

import "net/netip"

// Offsets (RFC 791 section 3.1, RFC 8200 section 3).
const (
	ipv4HeaderLen = 20
	ipv4Total     = 2 // length of header and payload
	ipv4Fragment  = 6
	ipv4Protocol  = 9
	ipv4Source    = 12
	ipv4Dest      = 16
	ipv6HeaderLen = 40
	ipv6Source    = 8
	ipv6Dest      = 24

	ipv4FragmentOf = 0x3fff // more fragments, and the offset
)

// SourceIP returns the source address of an IPv4 or IPv6 packet. It returns
// false if the EtherType or IP version is another one or the header is
// truncated.
func SourceIP(t EtherType, packet []byte) (netip.Addr, bool) {
	return ipAt(t, packet, ipv4Source, ipv6Source)
}

// DestIP is like [SourceIP], for the destination address.
func DestIP(t EtherType, packet []byte) (netip.Addr, bool) {
	return ipAt(t, packet, ipv4Dest, ipv6Dest)
}

// ClaimedIP returns the address that a message of address resolution says is its sender's: the sender of ARP in
// the Ethernet form, or the target of a probe, which has no sender (RFC 5227 section 2.1.1); the target of a
// neighbour advertisement; and the target of a solicitation for duplicate address detection, which has no source
// (RFC 4862 section 5.4.2). A host that tests the same address gives it up. ClaimedIP looks only at the place
// where the address is: the rest may be malformed. An address that ND binds to its sender is the source address.
func ClaimedIP(t EtherType, packet []byte) (netip.Addr, bool) {
	switch {
	case t == EtherTypeARP && len(packet) >= etherARPLen:
		if sender := netip.AddrFrom4([4]byte(packet[etherARPSender:])); !sender.IsUnspecified() {
			return sender, true
		}
		return netip.AddrFrom4([4]byte(packet[etherARPTarget:])), true
	case t == EtherTypeIPv6 && IsND(packet) && len(packet) >= ndTarget+16:
		source := netip.AddrFrom16([16]byte(packet[ipv6Source:]))
		if kind := packet[ndType]; kind == NDNeighborAdvert || kind == NDNeighborSolicit && source.IsUnspecified() {
			return netip.AddrFrom16([16]byte(packet[ndTarget:])), true
		}
	}
	return netip.Addr{}, false
}

func ipAt(t EtherType, packet []byte, off4, off6 int) (netip.Addr, bool) {
	switch {
	case t == EtherTypeIPv4 && isVersion(packet, 4, ipv4HeaderLen):
		return netip.AddrFrom4([4]byte(packet[off4:])), true
	case t == EtherTypeIPv6 && isVersion(packet, 6, ipv6HeaderLen):
		return netip.AddrFrom16([16]byte(packet[off6:])), true
	}
	return netip.Addr{}, false
}

// isVersion reports whether packet has at least n bytes and this IP version.
func isVersion(packet []byte, version byte, n int) bool {
	return len(packet) >= n && packet[0]>>4 == version
}
