package ipoib

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"ipoibd/hca/checksum"
)

var dhcpClient = MAC{2, 0, 0, 0, 0, 7}

// dhcpPacket returns an IPv4 packet with a DHCP message.
func dhcpPacket(t testing.TB, m *layers.DHCPv4, options int) []byte {
	t.Helper()
	from, to := layers.UDPPort(68), layers.UDPPort(67)
	if m.Operation == layers.DHCPOpReply {
		from, to = to, from
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4zero.To4(), DstIP: net.IPv4bcast.To4()}
	for range options {
		ip.Options = append(ip.Options, layers.IPv4Option{OptionType: 1, OptionLength: 1})
	}
	udp := &layers.UDP{SrcPort: from, DstPort: to}
	_ = udp.SetNetworkLayerForChecksum(ip) // cannot fail for an IPv4 layer
	m.HardwareType, m.HardwareLen, m.Xid = layers.LinkTypeEthernet, 6, 0x1234
	m.ClientHWAddr = dhcpClient[:]
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dhcpType(v layers.DHCPMsgType) layers.DHCPOptions {
	return layers.DHCPOptions{
		layers.NewDHCPOption(layers.DHCPOptHostname, []byte("guest")),
		layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{byte(v)}),
	}
}

// udpSum returns the Internet checksum over a UDP datagram and its pseudo header: 0xffff if it is right.
func udpSum(packet []byte) uint16 {
	header := int(packet[0]&15) * 4
	udp := packet[header:]
	return checksum.Sum(udp, checksum.Pseudo(packet[ipv4Source:ipv4HeaderLen], protoUDP, len(udp)))
}

// A request of a client without an address asks for an answer by broadcast, with the right checksum, or none if it
// has none. A client that renews its address is answered there.
func TestWantBroadcast(t *testing.T) {
	for name, c := range map[string]struct {
		m       layers.DHCPv4
		options int
		none    bool // without a checksum
		flagged bool
	}{
		"discover":             {layers.DHCPv4{Operation: layers.DHCPOpRequest, Options: dhcpType(layers.DHCPMsgTypeDiscover)}, 0, false, true},
		"with IP options":      {layers.DHCPv4{Operation: layers.DHCPOpRequest, Options: dhcpType(layers.DHCPMsgTypeDiscover)}, 8, false, true},
		"without a checksum":   {layers.DHCPv4{Operation: layers.DHCPOpRequest, Options: dhcpType(layers.DHCPMsgTypeRequest)}, 0, true, true},
		"flagged already":      {layers.DHCPv4{Operation: layers.DHCPOpRequest, Flags: 0x8000, Options: dhcpType(layers.DHCPMsgTypeRequest)}, 0, false, true},
		"renewal":              {layers.DHCPv4{Operation: layers.DHCPOpRequest, ClientIP: net.IPv4(10, 0, 0, 7).To4(), Options: dhcpType(layers.DHCPMsgTypeRequest)}, 0, false, false},
		"an answer of servers": {layers.DHCPv4{Operation: layers.DHCPOpReply, Options: dhcpType(layers.DHCPMsgTypeOffer)}, 0, false, false},
	} {
		packet := dhcpPacket(t, &c.m, c.options)
		if c.none {
			copy(packet[int(packet[0]&15)*4+6:], []byte{0, 0})
		}
		if !IsDHCP(EtherTypeIPv4, packet) {
			t.Fatalf("%s: not taken for DHCP", name)
		}
		before := bytes.Clone(packet)
		WantBroadcast(packet)
		m, err := dhcpOf(packet)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if flagged := m[dhcpFlags]&0x80 != 0; flagged != c.flagged || len(packet) != len(before) {
			t.Errorf("%s: flag %t, want %t", name, flagged, c.flagged)
		}
		if sum := udpSum(packet); !c.none && sum != 0xffff {
			t.Errorf("%s: the checksum is wrong: %#04x", name, sum)
		}
	}
}

func TestParseDHCP(t *testing.T) {
	yours := netip.MustParseAddr("10.0.0.9")
	for name, c := range map[string]struct {
		m    layers.DHCPv4
		want DHCP
	}{
		"discover": {layers.DHCPv4{Operation: layers.DHCPOpRequest, Options: dhcpType(layers.DHCPMsgTypeDiscover)}, DHCP{XID: 0x1234, Client: dhcpClient, Yours: netip.IPv4Unspecified()}},
		"offer":    {layers.DHCPv4{Operation: layers.DHCPOpReply, YourClientIP: yours.AsSlice(), Options: dhcpType(layers.DHCPMsgTypeOffer)}, DHCP{Reply: true, XID: 0x1234, Client: dhcpClient, Yours: yours}},
		"ACK":      {layers.DHCPv4{Operation: layers.DHCPOpReply, YourClientIP: yours.AsSlice(), Options: dhcpType(layers.DHCPMsgTypeAck)}, DHCP{Reply: true, ACK: true, XID: 0x1234, Client: dhcpClient, Yours: yours}},
	} {
		packet := dhcpPacket(t, &c.m, 0)
		if got, err := ParseDHCP(packet); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
		if _, err := ParseDHCP(packet[:ipv4HeaderLen+udpHeaderLen+dhcpOptions-1]); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s, cut: %v", name, err)
		}
		packet[ipv4HeaderLen+udpHeaderLen+dhcpHType] = 32 // InfiniBand, but with a hardware address
		if _, err := ParseDHCP(packet); !errors.Is(err, ErrFormat) {
			t.Errorf("%s of another link: %v", name, err)
		}
	}
}

// What is not DHCP, and fragments, go the way of other packets.
func TestIsDHCP(t *testing.T) {
	packet := dhcpPacket(t, &layers.DHCPv4{Operation: layers.DHCPOpRequest}, 0)
	for name, change := range map[string]func(p []byte) []byte{
		"other port":     func(p []byte) []byte { p[23]++; return append(p[:22:22], append([]byte{0, 53}, p[24:]...)...) },
		"TCP":            func(p []byte) []byte { p[9] = 6; return p },
		"fragment":       func(p []byte) []byte { p[7] = 1; return p },
		"more fragments": func(p []byte) []byte { p[6] = 0x20; return p },
		"version 6":      func(p []byte) []byte { p[0] = 0x65; return p },
		"short header":   func(p []byte) []byte { p[0] = 0x44; return p },
		"long header":    func(p []byte) []byte { p[0] = 0x4f; return p[:60] },
		"cut":            func(p []byte) []byte { return p[:27] },
	} {
		if IsDHCP(EtherTypeIPv4, change(bytes.Clone(packet))) {
			t.Errorf("%s is taken for DHCP", name)
		}
	}
	if IsDHCP(EtherTypeIPv6, packet) {
		t.Error("IPv6 is taken for DHCP")
	}
}

// requested returns a request with a client identifier, or without, and padding behind its options.
func requested(t testing.TB, id []byte, padding int) []byte {
	t.Helper()
	options := dhcpType(layers.DHCPMsgTypeDiscover)
	if id != nil {
		options = append(options, layers.NewDHCPOption(layers.DHCPOptClientID, id))
	}
	options = append(options, layers.NewDHCPOption(layers.DHCPOptEnd, nil))
	for range padding {
		options = append(options, layers.NewDHCPOption(layers.DHCPOptPad, nil))
	}
	return dhcpPacket(t, &layers.DHCPv4{Operation: layers.DHCPOpRequest, Options: options}, 0)
}

// A request gets the form of RFC 4390, and its answer that of Ethernet. gopacket reads both.
func TestDHCPToIPoIB(t *testing.T) {
	given := []byte{1, 2, 3, 4, 5, 6, 7}
	derived := []byte{255, 0, 0, 0, 7, 0, 3, 0, 1, 2, 0, 0, 0, 0, 7}
	for name, c := range map[string]struct {
		packet []byte
		id     []byte // nil: refused
	}{
		"with an identifier":    {requested(t, given, 0), given},
		"without":               {requested(t, nil, 40), derived},
		"without, just enough":  {requested(t, nil, 15), derived},
		"without, one too few":  {requested(t, nil, 14), nil},
		"in this form already":  {func() []byte { p := requested(t, given, 0); DHCPToIPoIB(p); return p }(), nil},
		"an answer of a server": {dhcpPacket(t, &layers.DHCPv4{Operation: layers.DHCPOpReply}, 0), nil},
	} {
		before := bytes.Clone(c.packet)
		done := DHCPToIPoIB(c.packet)
		if done != (c.id != nil) || !done && !bytes.Equal(before, c.packet) {
			t.Errorf("%s: done %t", name, done)
		}
		if !done {
			continue
		}
		var m layers.DHCPv4
		if err := m.DecodeFromBytes(c.packet[ipv4HeaderLen+udpHeaderLen:], gopacket.NilDecodeFeedback); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var id []byte
		for _, o := range m.Options {
			if o.Type == layers.DHCPOptClientID {
				id = o.Data
			}
		}
		if !bytes.Equal(id, c.id) || m.HardwareType != 32 || m.HardwareLen != 0 || m.Flags != dhcpBroadcast || udpSum(c.packet) != 0xffff || len(c.packet) != len(before) {
			t.Errorf("%s: identifier % x, %+v, checksum %#04x", name, id, m, udpSum(c.packet))
		}
		if chaddr := c.packet[ipv4HeaderLen+udpHeaderLen+dhcpCHAddr:][:16]; !bytes.Equal(chaddr, make([]byte, 16)) {
			t.Errorf("%s: hardware address % x", name, chaddr)
		}
	}

	answer := dhcpPacket(t, &layers.DHCPv4{Operation: layers.DHCPOpReply, Options: dhcpType(layers.DHCPMsgTypeAck)}, 0)
	want := bytes.Clone(answer)
	m := answer[ipv4HeaderLen+udpHeaderLen:]
	rewriteDHCP(answer, func() { m[dhcpHType], m[dhcpHLen] = dhcpInfiniBand, 0; clear(m[dhcpCHAddr:dhcpSName]) })
	if d, err := ParseDHCP(answer); err != nil || !d.Client.IsZero() || !d.ACK || udpSum(answer) != 0xffff {
		t.Errorf("an answer of a server: %+v, %v", d, err)
	}
	if !DHCPToEther(answer, dhcpClient) || !bytes.Equal(answer, want) {
		t.Errorf("the answer is\n% x, want\n% x", answer, want)
	}
	if DHCPToEther(answer, dhcpClient) {
		t.Error("an answer in the form of Ethernet was changed")
	}
}

// Whatever a packet contains, its length stays, a right checksum stays right, and a wrong one wrong.
func FuzzRewriteDHCP(f *testing.F) {
	f.Add(requested(f, nil, 40), true)
	f.Add(requested(f, []byte{1}, 0), false)
	f.Add(dhcpPacket(f, &layers.DHCPv4{Operation: layers.DHCPOpReply}, 8), true)
	f.Fuzz(func(t *testing.T, packet []byte, infiniBand bool) {
		if !IsDHCP(EtherTypeIPv4, packet) {
			return
		}
		udp := packet[int(packet[0]&15)*4:]
		n := int(binary.BigEndian.Uint16(udp[udpLength:]))
		if n < udpHeaderLen || n > len(udp) {
			n = udpHeaderLen
		}
		before := bytes.Clone(packet)
		sum := checksum.Sum(udp[:n], 0)
		if infiniBand {
			DHCPToIPoIB(packet)
		} else {
			WantBroadcast(packet)
		}
		DHCPToEther(packet, dhcpClient)
		changed := !bytes.Equal(before, packet)
		if had := binary.BigEndian.Uint16(before[len(packet)-len(udp)+udpChecksum:]); changed && had != 0 && checksum.Sum(udp[:n], 0) != sum {
			t.Errorf("the sum was %#04x, and is %#04x", sum, checksum.Sum(udp[:n], 0))
		} else if now := binary.BigEndian.Uint16(udp[udpChecksum:]); had == 0 && now != 0 {
			t.Errorf("a checksum has appeared: %#04x", now)
		}
	})
}

// Whatever a packet contains, nothing but the flag and the checksum change, and a right checksum stays right.
func TestWantBroadcastOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), dhcpOptions, dhcpOptions+64).Draw(t, "payload")
		payload[dhcpOp], payload[dhcpHType], payload[dhcpHLen] = rapid.SampledFrom([]byte{1, 2, 3}).Draw(t, "op"), 1, 6
		binary.BigEndian.PutUint32(payload[dhcpCookie:], dhcpMagic)
		if rapid.Bool().Draw(t, "without an address") {
			clear(payload[dhcpCIAddr:][:4])
		}
		packet := make([]byte, ipv4HeaderLen+udpHeaderLen, 512)
		packet[0], packet[9] = 0x45, 17
		packet = append(packet, payload...)
		udp := packet[ipv4HeaderLen:]
		binary.BigEndian.PutUint16(udp[2:], 67)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		sum := ^udpSum(packet)
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(udp[6:], sum)
		before := bytes.Clone(packet)
		_, _ = ParseDHCP(packet)
		WantBroadcast(packet)
		if udpSum(packet) != 0xffff {
			t.Errorf("checksum %#04x", udpSum(packet))
		}
		at := ipv4HeaderLen + udpHeaderLen + dhcpFlags
		before[at] |= packet[at] & 0x80
		copy(before[ipv4HeaderLen+6:][:2], udp[6:8])
		if !bytes.Equal(before, packet) {
			t.Errorf("more has changed:\n% x\n% x", before, packet)
		}
	})
}
