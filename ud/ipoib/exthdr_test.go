package ipoib

import (
	"fmt"
	"slices"
	"testing"
)

// extensions are extension headers with next header 0. Where the kind allows it, they are
// longer than the shortest one.
var extensions = map[uint8][]byte{
	extHopByHop:       {0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, // PadN
	extRouting:        {0, 2, 0, 0, 0, 0, 0, 0, 16: 0xfd, 23: 0},         // no segments left
	extFragment:       {0, 0, 0, 0, 0, 0, 0, 7},                          // atomic (RFC 6946)
	extAuthentication: {0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 23: 0},       // ICV of 12 bytes
	extDestination:    {0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, // PadN
}

// behind puts a packet's payload behind extension headers, in the given order.
func behind(packet []byte, chain ...uint8) []byte {
	next, payload := packet[ipv6NextHeader], packet[ipv6HeaderLen:]
	for _, h := range slices.Backward(chain) {
		header := slices.Clone(extensions[h])
		header[0] = next
		next, payload = h, append(header, payload...)
	}
	return ipv6With(next, ndHopLimit, payload)
}

// ipv6With returns an IPv6 packet.
func ipv6With(next, hops uint8, payload []byte) []byte {
	p := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), next, hops}
	p = appendIPv6(appendIPv6(p, gidA.Addr()), gidB.Addr())
	return append(p, payload...)
}

// TestNDBehindExtensionHeaders: every ND message behind every extension header, and
// behind every chain of two or three, is hidden ND.
func TestNDBehindExtensionHeaders(t *testing.T) {
	var chains [][]uint8
	for a := range extensions {
		chains = append(chains, []uint8{a})
		for b := range extensions {
			chains = append(chains, []uint8{a, b})
			for c := range extensions {
				chains = append(chains, []uint8{a, b, c})
			}
		}
	}
	chains = append(chains, slices.Repeat([]uint8{extDestination}, maxExtensions))
	for _, name := range ndNames {
		direct := golden(t, name, FormEther)
		if HidesND(direct) || !IsND(direct) {
			t.Errorf("%s directly behind the fixed header: hidden %v, plain %v", name, HidesND(direct), IsND(direct))
		}
		for _, chain := range chains {
			if p := behind(direct, chain...); !HidesND(p) || IsND(p) {
				t.Errorf("%s behind %v: hidden %v, plain %v", name, chain, HidesND(p), IsND(p))
			}
		}
	}
}

// TestUnfinishedChainsAreHiddenND: a chain whose upper layer cannot be reached may hide
// ND.
func TestUnfinishedChainsAreHiddenND(t *testing.T) {
	echo := ipv6With(protoICMPv6, ndHopLimit, []byte{128, 0, 0, 0, 0, 0, 0, 0})
	for h := range extensions {
		whole := behind(echo, h)
		for n := ipv6HeaderLen; n < len(whole)-8; n++ {
			if !HidesND(whole[:n]) {
				t.Errorf("%d bytes of a chain with %d are not hidden ND", n, h)
			}
		}
		if !HidesND(whole[:len(whole)-8]) {
			t.Errorf("a chain with %d that ends before the ICMPv6 type is not hidden ND", h)
		}
	}
	if p := behind(echo, slices.Repeat([]uint8{extDestination}, maxExtensions+1)...); !HidesND(p) {
		t.Errorf("a chain of %d headers is not hidden ND", maxExtensions+1)
	}
	first := behind(golden(t, "na", FormEther), extFragment)
	first[ipv6HeaderLen+3] |= 1 // more fragments
	if !HidesND(first) {
		t.Error("ND in a first fragment is not hidden ND")
	}
}

// TestOtherPacketsAreNoHiddenND: packets that Linux does not treat as ND pass.
func TestOtherPacketsAreNoHiddenND(t *testing.T) {
	na := golden(t, "na", FormEther)
	crossed := behind(na, extDestination)
	crossed[ipv6HopLimit] = 254
	later := behind(na, extFragment)
	later[ipv6HeaderLen+3] = 8 // offset 1
	mld := behind(ipv6With(protoICMPv6, 1, []byte{143, 0, 0, 0, 0, 0, 0, 0}), extHopByHop)
	mld[ipv6HopLimit] = 1
	udp := ipv6With(17, ndHopLimit, []byte{0, 7, 0, 9, 0, 8, 0, 0})
	cases := map[string][]byte{
		"a message that crossed a router": crossed,
		"a later fragment":                later,
		"MLD":                             mld,
		"UDP":                             udp,
		"UDP behind options":              behind(udp, extHopByHop, extDestination),
		"an empty packet":                 ipv6With(59, ndHopLimit, nil),
		"nothing behind options":          behind(ipv6With(59, ndHopLimit, nil), extDestination),
		"ICMPv6 of no length":             ipv6With(protoICMPv6, ndHopLimit, nil),
		"a packet in a packet":            behind(ipv6With(41, ndHopLimit, na), extDestination),
		"ESP":                             behind(ipv6With(50, ndHopLimit, na), extDestination),
		"Mobility":                        behind(ipv6With(135, ndHopLimit, []byte{58, 0, 0, 0, 0, 0, 0, 0, 136}), extDestination),
		"HIP":                             behind(ipv6With(139, ndHopLimit, []byte{58, 0, 0, 0, 0, 0, 0, 0, 136}), extDestination),
		"another version":                 append([]byte{0x40}, behind(na, extDestination)[1:]...),
		"a part of the fixed header":      behind(na, extDestination)[:ipv6HeaderLen-1],
	}
	for _, icmp := range []uint8{0, 1, 127, 128, 129, 132, 138, 143, 255} {
		packet := behind(ipv6With(protoICMPv6, ndHopLimit, []byte{icmp, 0, 0, 0, 0, 0, 0, 0}), extDestination)
		cases[fmt.Sprintf("ICMPv6 type %d", icmp)] = packet
	}
	for name, packet := range cases {
		if HidesND(packet) {
			t.Errorf("%s is hidden ND", name)
		}
	}
}
