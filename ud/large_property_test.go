package ud

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/segment"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// drawLarge returns a large frame to B as a kernel may hand it over, with any options and
// extension headers, and the length of its headers from Ethernet on. odd says that TCP's flags
// are not those of data.
func drawLarge(t *rapid.T) (f []byte, headers int, odd bool) {
	bytesOf := func(n int, name string) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name) }
	payload := bytes.Repeat([]byte{1}, rapid.IntRange(1, 3000).Draw(t, "payload"))
	h := vnet.Header{Flags: vnet.NeedsCsum, GSOSize: uint16(rapid.IntRange(3, 2000).Draw(t, "MSS"))}
	v6 := rapid.Bool().Draw(t, "IPv6")
	proto, l4 := byte(17), bytesOf(8, "UDP")
	l4[2] |= 1 // not the ports of DHCP
	h.GSOType, h.CsumOffset = vnet.GSOUDPL4, vnet.CsumOffsetUDP
	if rapid.Bool().Draw(t, "TCP") {
		proto, l4 = 6, bytesOf(20+4*rapid.IntRange(0, 10).Draw(t, "TCP options"), "TCP")
		l4[12] = byte(len(l4)) << 2
		odd = l4[13]&6 != 0 && len(payload) > int(h.GSOSize)
		h.GSOType, h.CsumOffset = vnet.GSOTCPv4, vnet.CsumOffsetTCP
		if v6 {
			h.GSOType = vnet.GSOTCPv6
		}
	}
	var ip, behind []byte
	if v6 {
		for i := range rapid.IntRange(0, 4).Draw(t, "extension headers") {
			units := rapid.IntRange(0, 12).Draw(t, "units")
			x := append([]byte{proto, byte(units)}, bytesOf(8*units+6, "extension")...)
			behind, proto = append(x, behind...), []byte{43, 60, 60, 0}[i]
		}
		ip = ipv6("fe80::2", proto, 0, 64, 40)
		binary.BigEndian.PutUint16(ip[4:], uint16(len(behind)+len(l4)+len(payload)))
	} else {
		behind = bytesOf(4*rapid.IntRange(0, 10).Draw(t, "IPv4 options"), "options")
		ip = ipv4("10.0.0.2", 20)
		ip[0], ip[9] = byte(0x40+5+len(behind)/4), proto
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(behind)+len(l4)+len(payload)))
	}
	typ := map[bool]ipoib.EtherType{false: ipoib.EtherTypeIPv4, true: ipoib.EtherTypeIPv6}[v6]
	f = frame(macB, macA, typ, bytes.Join([][]byte{ip, behind, l4, payload}, nil))
	h.CsumStart = uint16(etherHeaderLen + len(ip) + len(behind))
	h.Put(f)
	return f, int(h.CsumStart) + len(l4), odd
}

// Every large frame that the host may hand over is either sent, so that devices can cut it, or
// dropped for a reason of its own, because devices accept no headers of that length.
func TestTxSendsLargeFramesThatDevicesCanCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, headers, odd := drawLarge(t)
		rules := testRules()
		rules.large, rules.mtu = true, 4092
		want := Sent
		switch {
		case odd:
			want = Offload
		case headers-etherHeaderLen+hca.EncapLen > hca.MaxLSOHeader:
			want = LongHeaders
		}
		to, reason := rules.classify(f)
		if reason != want {
			t.Fatalf("%v, with headers of %d bytes; want %v", reason, headers, want)
		}
		if reason != Sent {
			return
		}
		ipoib.PutHeader(f[txMessage:], etherTypeOf(f[txEther:]))
		var p segment.Plan
		if err := p.Cut(f[txMessage:txEther+to.headers], hca.EncapLen, len(f)-txEther-to.headers, to.mss); err != nil {
			t.Fatalf("%v: % x", err, f[:txEther+to.headers])
		}
	})
}
