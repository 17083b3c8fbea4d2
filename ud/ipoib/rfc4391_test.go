package ipoib

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ipoibd/hca"
)

// The tests in this file show RFC 4391's requirements for the encoding, by section.

// Section 4: an MGID starts with ff, the flags 0001 (transient) and the scope.
func TestRFC4391Section4FlagsAndScope(t *testing.T) {
	// Link-local, site-local, organisation-local and global.
	for scope, want := range map[uint8]byte{ScopeLinkLocal: 0x12, 0x5: 0x15, 0x8: 0x18, 0xe: 0x1e} {
		for _, g := range everyMGID(scope, hca.PKeyDefault) {
			if g[0] != 0xff || g[1] != want {
				t.Errorf("scope %x: got %v, want it to begin with ff%02x", scope, g, want)
			}
		}
	}
}

// everyMGID returns an MGID of each kind: broadcast, IPv4 and IPv6.
func everyMGID(scope uint8, pkey hca.PKey) []hca.GID {
	return []hca.GID{
		BroadcastMGID(scope, pkey),
		GroupMGID(scope, pkey, ip("224.0.0.251")),
		GroupMGID(scope, pkey, ip("ff02::fb")),
	}
}

// Section 4: the scope has four bits; higher bits do not spill into the flags.
func TestRFC4391Section4ScopeIsFourBits(t *testing.T) {
	for _, g := range everyMGID(0xf2, hca.PKeyDefault) {
		if g[1] != 0x12 {
			t.Errorf("got %v, want the flags and scope 12", g)
		}
	}
}

// Section 4: the signature is 0x401b for IPv4, broadcast included, and 0x601b for
// IPv6.
func TestRFC4391Section4Signature(t *testing.T) {
	for i, want := range []uint16{0x401b, 0x401b, 0x601b} {
		g := everyMGID(ScopeLinkLocal, hca.PKeyDefault)[i]
		if got := binary.BigEndian.Uint16(g[2:]); got != want {
			t.Errorf("%v: got signature %04x, want %04x", g, got, want)
		}
	}
}

// Section 4: the P_Key in an MGID has its full-membership bit set, so that
// limited and full members share a group.
func TestRFC4391Section4PKeyIsThatOfFullMembers(t *testing.T) {
	for pkey, want := range map[hca.PKey]uint16{0x7fff: 0xffff, 0xffff: 0xffff, 0x1234: 0x9234, 0x9234: 0x9234} {
		for _, g := range everyMGID(ScopeLinkLocal, pkey) {
			if got := binary.BigEndian.Uint16(g[4:]); got != want {
				t.Errorf("P_Key %04x: got %04x in %v, want %04x", pkey, got, g, want)
			}
		}
	}
}

// Section 4: the broadcast-GID ends in 48 zero bits and 32 one bits.
func TestRFC4391Section4BroadcastGID(t *testing.T) {
	got := BroadcastMGID(ScopeLinkLocal, 0x8001)
	if want := hca.GID(unhex("ff12 401b 8001 000000000000 ffffffff")); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Section 4: the MGID of an IPv4 group contains its low 28 bits; the rest is
// zero.
func TestRFC4391Section4IPv4GroupID(t *testing.T) {
	got := GroupMGID(ScopeLinkLocal, 0x8001, ip("239.254.253.252"))
	if want := hca.GID(unhex("ff12 401b 8001 000000000000 0ffefdfc")); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Section 4: the MGID of an IPv6 group contains its low 80 bits, but not its
// flags and scope.
func TestRFC4391Section4IPv6GroupID(t *testing.T) {
	want := hca.GID(unhex("ff12 601b 8001 0102030405060708090a"))
	for _, group := range []string{"ff02::102:304:506:708:90a", "ff3e:1:2:102:304:506:708:90a"} {
		if got := GroupMGID(ScopeLinkLocal, 0x8001, ip(group)); got != want {
			t.Errorf("%s: got %v, want %v", group, got, want)
		}
	}
}

// Section 6: the types of the payload, and the reserved bits, which are zero on
// send.
func TestRFC4391Section6Header(t *testing.T) {
	for typ, want := range map[EtherType]uint32{
		EtherTypeIPv4: 0x08000000, EtherTypeARP: 0x08060000, EtherTypeRARP: 0x80350000, EtherTypeIPv6: 0x86dd0000,
	} {
		dst := []byte{0xff, 0xff, 0xff, 0xff}
		PutHeader(dst, typ)
		if got := binary.BigEndian.Uint32(dst); got != want || !typ.Carried() {
			t.Errorf("%v: got %08x, carried %t, want %08x, carried", typ, got, typ.Carried(), want)
		}
	}
}

// Section 6: the reserved bits are ignored on receive.
func TestRFC4391Section6ReservedIgnored(t *testing.T) {
	for bit := range 16 {
		msg := unhex("0800 0000 45")
		msg[2+bit/8] |= 0x80 >> (bit % 8)
		typ, payload, err := ParseHeader(msg)
		if err != nil || typ != EtherTypeIPv4 || !bytes.Equal(payload, []byte{0x45}) {
			t.Errorf("reserved bit %d: got %v, % x, %v", bit, typ, payload, err)
		}
	}
}

// Section 7: the header is part of the IB payload, so the MTU is the IB MTU minus four
// bytes, and a packet of that length fills the payload.
func TestRFC4391Section7MTU(t *testing.T) {
	for ib, mtu := range map[hca.MTU]int{256: 252, 512: 508, 1024: 1020, 2048: 2044, 4096: 4092} {
		msg := message(EtherTypeIPv6, make([]byte, mtu))
		if len(msg) != int(ib) {
			t.Errorf("IB MTU %d: a packet of %d bytes makes a message of %d", ib, mtu, len(msg))
		}
		if _, payload, err := ParseHeader(msg); err != nil || len(payload) != mtu {
			t.Errorf("IB MTU %d: got a packet of %d bytes, %v", ib, len(payload), err)
		}
	}
}

// Section 9.1.1: a link-layer address is 20 bytes: 8 reserved bits, 24 bits of
// QPN, 128 of GID; the reserved bits are zero on send.
func TestRFC4391Section911LinkLayerAddress(t *testing.T) {
	got := NewAddr(0xabcdef, hca.GID(unhex("00112233445566778899aabbccddeeff")))
	if want := Addr(unhex("00 abcdef 00112233445566778899aabbccddeeff")); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Section 9.1.1: the reserved bits are ignored on receive.
func TestRFC4391Section911ReservedIgnored(t *testing.T) {
	for bit := range 8 {
		a := addrB
		a[0] = 1 << bit
		if a.QPN() != addrB.QPN() || a.GID() != addrB.GID() {
			t.Errorf("bit %d: QPN %v, GID %v", bit, a.QPN(), a.GID())
		}
		arp := arpReply
		arp.SHA = a
		if got, err := ParseARP(arp.Append(nil)); err != nil || got.SHA.QPN() != addrB.QPN() {
			t.Errorf("bit %d in ARP: got %+v, %v", bit, got, err)
		}
	}
}

// Section 9.2: the hardware type of ARP is 32, the address length 20.
func TestRFC4391Section92ARP(t *testing.T) {
	body := ARP{ARPRequest, addrA, ip("192.0.2.1"), Addr{}, ip("192.0.2.2")}.Append(nil)
	if want := unhex("0020 0800 14 04 0001"); len(body) != 56 || !bytes.Equal(body[:8], want) {
		t.Errorf("got %d bytes, % x; want 56, % x", len(body), body[:8], want)
	}
}

// Section 9.3: a link-layer address option is type 1 or 2, length 3 (24 bytes),
// two reserved bytes of zero, and the address.
func TestRFC4391Section93Option(t *testing.T) {
	for name, want := range map[string]string{
		"rs": "01 03 0000 00000048 fe80000000000000020000fffe00000a",
		"na": "02 03 0000 0012ab49 fe80000000000000020000fffe00000b",
	} {
		packet, err := TranslateND(nil, golden(t, name, FormEther), FormEther, FormIPoIB, roomy, known)
		if err != nil || !bytes.Equal(ndOptions(packet), unhex(want)) {
			t.Errorf("%s: got % x, %v; want %s", name, ndOptions(packet), err, want)
		}
	}
}

// Section 9.3: the option occurs in router solicitations and advertisements,
// neighbour solicitations and advertisements, and redirects: it is parsed in all
// of them, and its reserved bytes are ignored.
func TestRFC4391Section93EveryMessage(t *testing.T) {
	for _, name := range []string{"rs", "ra", "ns", "na", "redirect"} {
		packet := golden(t, name, FormIPoIB)
		option := ndOptions(packet)
		option[2], option[3] = 0xff, 0xff
		nd, err := ParseND(mended(packet), FormIPoIB)
		if err != nil {
			t.Errorf("%s: %v, want the option parsed", name, err)
			continue
		}
		if addr, ok := nd.Link.IPoIB(); !ok || addr != ndWant[name].addr {
			t.Errorf("%s: got %v, %t, want %v", name, addr, ok, ndWant[name].addr)
		}
	}
}

// Section 10: multicast goes to the group that section 4 maps the address to. The
// expected values are those of the groups that every node joins.
func TestRFC4391Section10WellKnownGroups(t *testing.T) {
	for group, want := range map[string]string{
		"224.0.0.1":         "ff12 401b ffff 000000000000 00000001", // all hosts
		"255.255.255.255":   "ff12 401b ffff 000000000000 ffffffff", // limited broadcast
		"ff02::1":           "ff12 601b ffff 00000000000000000001",  // all nodes
		"ff02::1:ff00:000a": "ff12 601b ffff 000000000001ff00000a",  // solicited node
	} {
		if got := GroupMGID(ScopeLinkLocal, hca.PKeyDefault, ip(group)); got != hca.GID(unhex(want)) {
			t.Errorf("%s: got %v, want %s", group, got, want)
		}
	}
}
