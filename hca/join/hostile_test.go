package join

import (
	"encoding/binary"
	"testing"
)

// Packets that a hostile sender may build are not joined to the one before them, even if their
// checksums are correct.
func TestHostilePackets(t *testing.T) {
	const v4TCP, v6TCP = ipv4Len, ipv6Len
	put := binary.BigEndian.PutUint16
	for _, c := range []struct {
		name    string
		v6, udp bool
		change  func(b []byte) []byte
		keep    bool // leave the checksums as change has set them
	}{
		{name: "overlaps", change: func(b []byte) []byte { b[v4TCP+tcpSeq+3] -= 1; return b }},
		{name: "total length 0", change: func(b []byte) []byte { put(b[ipv4TotalLen:], 0); return b }},
		{name: "total length within the IP header", change: func(b []byte) []byte { put(b[ipv4TotalLen:], 19); return b }},
		{name: "total length within the TCP header", change: func(b []byte) []byte { put(b[ipv4TotalLen:], 39); return b }},
		{name: "total length 65535", change: func(b []byte) []byte { put(b[ipv4TotalLen:], 65535); return b }},
		{name: "payload length 0", v6: true, change: func(b []byte) []byte { put(b[ipv6PayloadLen:], 0); return b }},
		{name: "payload length 65535", v6: true, change: func(b []byte) []byte { put(b[ipv6PayloadLen:], 65535); return b }},
		{name: "padding", change: func(b []byte) []byte { return append(b, 0) }},
		{name: "truncated", change: func(b []byte) []byte { return b[:len(b)-1] }},
		{name: "header length below 20", change: func(b []byte) []byte { b[0] = 0x44; return b }},
		{name: "version 6 in IPv4", change: func(b []byte) []byte { b[0] = 0x65; return b }},
		{name: "data offset 4", change: func(b []byte) []byte { b[v4TCP+tcpOff] = 0x40; return b }},
		{name: "data offset at the end", change: func(b []byte) []byte { b[v4TCP+tcpOff] = 0xf0; return b }},
		{name: "data offset in the payload", change: func(b []byte) []byte { b[v4TCP+tcpOff] = 0x60; return b }},
		{name: "nonce bit", change: func(b []byte) []byte { b[v4TCP+tcpOff] |= 1; return b }},
		{name: "congestion experienced", change: func(b []byte) []byte { b[1] = 3; return b }},
		{name: "congestion experienced, IPv6", v6: true, change: func(b []byte) []byte { b[1] ^= 0x30; return b }},
		{name: "SYN", change: func(b []byte) []byte { b[v4TCP+tcpFlags] |= 2; return b }},
		{name: "URG", change: func(b []byte) []byte { b[v4TCP+tcpFlags] |= 0x20; return b }},
		{name: "reserved bit", change: func(b []byte) []byte { b[ipv4Frag] |= 0x80; return b }},
		{name: "more fragments", change: func(b []byte) []byte { b[ipv4Frag] = 0x20; return b }},
		{name: "UDP without checksum", udp: true, change: func(b []byte) []byte { put(b[ipv4Len+udpSum:], 0); return b }, keep: true},
		{name: "UDP without checksum, IPv6", udp: true, v6: true, change: func(b []byte) []byte { put(b[ipv6Len+udpSum:], 0); return b }, keep: true},
		{name: "UDP length 0", udp: true, v6: true, change: func(b []byte) []byte { put(b[ipv6Len+udpLength:], 0); return b }},
		{name: "UDP length one too small", udp: true, change: func(b []byte) []byte { b[ipv4Len+udpLength+1]--; return b }},
		{name: "UDP without payload", udp: true, change: func(b []byte) []byte {
			b = b[:ipv4Len+udpHeaderLen]
			setLength(b)
			put(b[ipv4Len+udpLength:], udpHeaderLen)
			return b
		}},
		{name: "hop-by-hop options", v6: true, change: func(b []byte) []byte { b[ipv6Next] = 0; return b }},
		{name: "fragment header", v6: true, change: func(b []byte) []byte { b[ipv6Next] = 44; return b }},
		{name: "checksum ffff", change: func(b []byte) []byte { return otherZero(b, v4TCP+tcpSum, ipv4Len+tcpMinLen) }, keep: true},
		{name: "checksum ffff, IPv6", v6: true, change: func(b []byte) []byte { return otherZero(b, v6TCP+tcpSum, ipv6Len+tcpMinLen) }, keep: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := example(c.v6, c.udp)
			if _, run, _ := joinAll([][]byte{first, behind(first, 1)}, c.v6); run.N != 2 {
				t.Fatalf("%d of 2 unchanged packets are joined", run.N)
			}
			second := c.change(behind(first, 1))
			if !c.keep {
				mend(second)
			}
			if _, run, _ := joinAll([][]byte{first, second}, c.v6); run.N != 1 {
				t.Error("joined")
			}
		})
	}
}

// otherZero changes the payload so that the checksum is zero, and writes that as 0xffff, which
// is correct too (RFC 1071), but not what cutting yields.
func otherZero(b []byte, sum, payload int) []byte {
	b[payload], b[payload+1] = 0, 0
	mend(b)
	copy(b[payload:], b[sum:sum+2])
	mend(b)
	if binary.BigEndian.Uint16(b[sum:]) != 0 {
		panic("the checksum is not zero")
	}
	binary.BigEndian.PutUint16(b[sum:], 0xffff)
	return b
}

// Packets to a group or to all hosts are never joined.
func TestPacketsToGroupsStayAlone(t *testing.T) {
	for _, dst := range [][]byte{{224, 0, 0, 1}, {239, 1, 2, 3}, {255, 255, 255, 255}, {0xff, 2}} {
		v6 := len(dst) < 4
		b := example(v6, true)
		copy(b[map[bool]int{false: ipv4Addrs + 4, true: ipv6Addrs + 16}[v6]:], dst)
		mend(b)
		if p, run, _ := joinAll([][]byte{b, behind(b, 1)}, v6); p.Kind == Joinable || run.N > 1 {
			t.Errorf("%v: kind %d, %d joined", dst, p.Kind, run.N)
		}
	}
}

// The checksum of the IPv4 header is not written as 0xffff either.
func TestOtherZeroOfIPv4(t *testing.T) {
	first := example(false, false)
	second := behind(first, 1)
	sum := binary.BigEndian.Uint16(second[ipv4Sum:])
	for _, b := range [][]byte{first, second} { // the sender's address makes the second checksum zero
		half := uint32(binary.BigEndian.Uint16(b[ipv4Addrs+2:])) + uint32(sum)
		binary.BigEndian.PutUint16(b[ipv4Addrs+2:], uint16(half>>16+half))
		mend(b)
	}
	if _, run, _ := joinAll([][]byte{first, second}, false); binary.BigEndian.Uint16(second[ipv4Sum:]) != 0 || run.N != 2 {
		t.Fatalf("checksum %x, %d joined", second[ipv4Sum:ipv4Sum+2], run.N)
	}
	binary.BigEndian.PutUint16(second[ipv4Sum:], 0xffff)
	if _, run, _ := joinAll([][]byte{first, second}, false); run.N != 1 {
		t.Error("joined")
	}
}
