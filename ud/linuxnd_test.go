package ud

import (
	"encoding/binary"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// linuxTreatsAsND reports whether any version of Linux, in any configuration, passes an
// IPv6 packet to neighbour discovery, at once or after later fragments. Each case follows
// the kernel function that handles the header.
func linuxTreatsAsND(p []byte) bool {
	// ip6_rcv_core; ndisc_rcv for the hop limit, which a reassembled packet takes
	// from its first fragment.
	if len(p) < 40 || p[0]>>4 != 6 || p[7] != 255 {
		return false
	}
	next, body := p[6], p[40:]
	if n := int(binary.BigEndian.Uint16(p[4:])); n != 0 || next != 0 {
		if n > len(body) {
			return false
		}
		body = body[:n]
	}
	if next == 0 { // ipv6_parse_hopopts: this header is only allowed here
		return skipLinux(body, false, func(b []byte) int { return (int(b[1]) + 1) * 8 })
	}
	return deliverLinux(next, body, false)
}

// deliverLinux follows ip6_protocol_deliver_rcu. If partial is set, the body continues in
// later fragments of unknown content.
func deliverLinux(next byte, body []byte, partial bool) bool {
	switch next {
	case 43: // ipv6_rthdr_rcv: a packet with segments left is forwarded, with a lower hop limit
		if len(body) >= 4 && body[3] != 0 {
			return false
		}
		return skipLinux(body, partial, func(b []byte) int { return (int(b[1]) + 1) * 8 })
	case 44: // ipv6_frag_rcv
		if len(body) >= 8 && (body[2] != 0 || body[3]&^7 != 0) {
			return false
		}
		more := len(body) >= 8 && body[3]&1 != 0
		return skipLinux(body, partial || more, func([]byte) int { return 8 })
	case 51: // ah6_input
		return skipLinux(body, partial, func(b []byte) int { return (int(b[1]) + 2) * 4 })
	case 60: // ipv6_destopt_rcv
		return skipLinux(body, partial, func(b []byte) int { return (int(b[1]) + 1) * 8 })
	case 58: // icmpv6_rcv
		if len(body) == 0 {
			return partial
		}
		return body[0] >= 133 && body[0] <= 137
	}
	return false
}

func skipLinux(body []byte, partial bool, size func([]byte) int) bool {
	if len(body) < 8 || len(body) < size(body) {
		return partial
	}
	return deliverLinux(body[0], body[size(body):], partial)
}

// behind puts the payload of an IPv6 packet behind extension headers of 8 bytes each.
func behind(p []byte, chain ...byte) []byte {
	out := append([]byte(nil), p[:40]...)
	at := 6
	for _, h := range chain {
		out[at] = h
		at = len(out)
		out = append(out, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	out[at] = p[6]
	out = append(out, p[40:]...)
	binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
	return out
}

var extensionHeaders = []byte{0, 43, 44, 51, 60}

// TestNDBehindExtensionHeadersIsDropped: every ND message behind every extension header
// and behind every chain of two is classified as hidden ND, to unicast and group
// destinations, from the host and from the fabric.
func TestNDBehindExtensionHeadersIsDropped(t *testing.T) {
	var chains [][]byte
	for _, a := range extensionHeaders {
		chains = append(chains, []byte{a})
		for _, b := range extensionHeaders {
			chains = append(chains, []byte{a, b})
		}
	}
	group := ipoib.MAC{0x33, 0x33, 0, 0, 0, 1}
	for typ := byte(133); typ <= 137; typ++ {
		for to, mac := range map[string]ipoib.MAC{"fe80::2": macB, "ff02::1": group} {
			for _, chain := range chains {
				packet := behind(ipv6(to, 58, typ, 255, 80), chain...)
				tx := testRules()
				if _, got := tx.classify(frame(mac, macA, ipoib.EtherTypeIPv6, packet)); got != HiddenND {
					t.Errorf("type %d behind %v to %s, from the host: %v", typ, chain, to, got)
				}
				buf, wc := received(gidB, gidA, msg(ipoib.EtherTypeIPv6, packet))
				rx := rxRules{testMTU, portLID{}, newPeers(1)}
				if _, got := rx.inspect(buf, &wc); got != HiddenND {
					t.Errorf("type %d behind %v to %s, from the fabric: %v", typ, chain, to, got)
				}
			}
		}
	}
}

// FuzzLinuxND: no packet that Linux treats as ND passes untranslated, in either direction
// and to any destination.
func FuzzLinuxND(f *testing.F) {
	na, echo := ipv6("fe80::2", 58, 136, 255, 80), ipv6("fe80::2", 58, 128, 255, 64)
	for _, p := range [][]byte{na, echo, udp6("ff02::fb"), ns6("ff02::1")} {
		f.Add(p)
		f.Add(behind(p, 60))
		f.Add(behind(p, 0, 43, 44, 51, 60))
		f.Add(behind(p, 60, 60, 60, 60, 60, 60, 60, 60, 60))
		f.Add(behind(p, 44)[:48])
	}
	fragment := behind(na, 60, 44)
	fragment[40+8+3] = 1 // first of several
	f.Add(fragment)
	f.Add(fragment[:56])
	padded := behind(echo, 60, 44)
	padded[40+8+3] = 1
	padded = append(padded, echo[40:]...)
	binary.BigEndian.PutUint16(padded[4:], 16) // the echo is padding, and the payload ends with the fragment header
	f.Add(padded)
	later := behind(na, 44)
	later[40+3] = 8 | 1
	f.Add(later)
	jumbo := behind(na, 0)
	jumbo[4], jumbo[5] = 0, 0 // no payload length
	f.Add(jumbo)
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) > testMTU || !linuxTreatsAsND(packet) {
			return
		}
		want := HiddenND
		if packet[6] == 58 {
			want = SlowPathed // the slow path translates it
		}
		tx := testRules()
		for _, dst := range []ipoib.MAC{macB, macX, {0x33, 0x33, 0, 0, 0, 0xfb}, ipoib.Broadcast} {
			if _, got := tx.classify(frame(dst, macA, ipoib.EtherTypeIPv6, packet)); got != want {
				t.Errorf("from the host to %v: %v, want %v: %x", dst, got, want, packet)
			}
		}
		for _, to := range []hca.GID{gidA, {0xff, 0x12}} {
			buf, wc := received(gidB, to, msg(ipoib.EtherTypeIPv6, packet))
			rx := rxRules{testMTU, portLID{}, newPeers(1)}
			if _, got := rx.inspect(buf, &wc); got != want {
				t.Errorf("from the fabric to %v: %v, want %v: %x", to, got, want, packet)
			}
		}
	})
}
