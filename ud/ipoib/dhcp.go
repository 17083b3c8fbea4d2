package ipoib

import (
	"encoding/binary"
	"net/netip"

	"ipoibd/hca/checksum"
)

// Offsets in a UDP datagram (RFC 768) and in a DHCP message (RFC 2131 section 2), from their beginnings.
const (
	udpHeaderLen   = 8
	udpDestPort    = 2
	udpLength      = 4
	udpChecksum    = 6
	dhcpOp         = 0
	dhcpHType      = 1
	dhcpHLen       = 2
	dhcpXID        = 4
	dhcpFlags      = 10
	dhcpCIAddr     = 12
	dhcpYIAddr     = 16
	dhcpGIAddr     = 24
	dhcpCHAddr     = 28
	dhcpSName      = 44
	dhcpCookie     = 236
	dhcpOptions    = 240
	dhcpServerPort = 67
	dhcpClientPort = 68

	dhcpRequest    = 1
	dhcpReply      = 2
	dhcpEthernet   = 1          // hardware type (RFC 1700)
	dhcpInfiniBand = 32         // likewise (RFC 4390)
	dhcpBroadcast  = 0x8000     // flag: answer by broadcast
	dhcpMagic      = 0x63825363 // RFC 2132 section 2
	optionPad      = 0
	optionType     = 53
	optionClientID = 61
	optionEnd      = 255
	dhcpACK        = 5
	protoUDP       = 17
)

// IsDHCP reports whether a packet is an IPv4 one to the port of DHCP servers or clients, and no
// fragment. It is cheap enough for every frame.
func IsDHCP(t EtherType, packet []byte) bool {
	if t != EtherTypeIPv4 || len(packet) < ipv4HeaderLen+udpHeaderLen || packet[ipv4Protocol] != protoUDP {
		return false
	}
	udp := int(packet[0]&15) * 4
	if udp < ipv4HeaderLen || len(packet) < udp+udpHeaderLen {
		return false
	}
	port := binary.BigEndian.Uint16(packet[udp+udpDestPort:])
	return (port == dhcpServerPort || port == dhcpClientPort) && packet[0]>>4 == 4 &&
		binary.BigEndian.Uint16(packet[ipv4Fragment:])&ipv4FragmentOf == 0
}

// DHCP is what a link must know of a DHCP message.
type DHCP struct {
	Reply  bool       // of a server
	Relay  bool       // a reply for a relay agent (RFC 2131 section 4.1)
	ACK    bool       // the client has the address Yours from now on
	XID    uint32     // by which a client knows the answers to it
	Client MAC        // the hardware address of the client; zero: the message has the form of RFC 4390
	Yours  netip.Addr // for the client; unspecified: none
}

// ParseDHCP parses a packet for which [IsDHCP] returns true. Errors: ErrTruncated; ErrFormat if it is no
// DHCP message, or its client has a hardware address of another kind.
func ParseDHCP(packet []byte) (DHCP, error) {
	m, err := dhcpOf(packet)
	if err != nil {
		return DHCP{}, err
	}
	d := DHCP{
		Reply: m[dhcpOp] == dhcpReply, XID: binary.BigEndian.Uint32(m[dhcpXID:]),
		Yours: netip.AddrFrom4([4]byte(m[dhcpYIAddr:])),
	}
	d.Relay = d.Reply && binary.BigEndian.Uint32(m[dhcpGIAddr:]) != 0
	if m[dhcpHType] == dhcpEthernet {
		d.Client = MAC(m[dhcpCHAddr:])
	}
	kind := optionOf(m, optionType)
	d.ACK = d.Reply && len(kind) == 1 && kind[0] == dhcpACK
	return d, nil
}

// dhcpOf returns the DHCP message of a packet.
func dhcpOf(packet []byte) ([]byte, error) {
	udp := packet[int(packet[0]&15)*4:]
	n := int(binary.BigEndian.Uint16(udp[udpLength:]))
	if n < udpHeaderLen+dhcpOptions || n > len(udp) {
		return nil, ErrTruncated
	}
	m := udp[udpHeaderLen:n]
	known := m[dhcpHType] == dhcpEthernet && m[dhcpHLen] == 6 || m[dhcpHType] == dhcpInfiniBand && m[dhcpHLen] == 0
	if m[dhcpOp] != dhcpRequest && m[dhcpOp] != dhcpReply || !known || binary.BigEndian.Uint32(m[dhcpCookie:]) != dhcpMagic {
		return nil, ErrFormat
	}
	return m, nil
}

// optionOf returns the value of an option of a message, or nil.
func optionOf(m []byte, code byte) []byte {
	at, _ := findOption(m, code)
	if at < 0 {
		return nil
	}
	return m[at+2:][:m[at+1]]
}

// findOption returns where an option is in a message, or -1, and where the options end; -1: nowhere.
func findOption(m []byte, code byte) (at, end int) {
	for i := dhcpOptions; i < len(m); {
		switch {
		case m[i] == optionPad:
			i++
			continue
		case m[i] == optionEnd:
			return -1, i
		case i+1 >= len(m) || i+2+int(m[i+1]) > len(m):
			return -1, -1
		case m[i] == code:
			return i, -1
		}
		i += 2 + int(m[i+1])
	}
	return -1, -1
}

// WantBroadcast has the server broadcast its answer to a request of a client without an address: it sets the flag, in
// place. A server would otherwise address the answer to the client's MAC, which means nothing on the fabric. Other
// packets stay as they are, such as those of a relay agent, which gets the answer. The packet is one for which [IsDHCP] returns true. A checksum that was right, and only such
// a one, is right afterwards.
func WantBroadcast(packet []byte) {
	if m, err := dhcpOf(packet); err == nil && m[dhcpOp] == dhcpRequest {
		rewriteDHCP(packet, func() { wantBroadcast(m) })
	}
}

func wantBroadcast(m []byte) {
	if binary.BigEndian.Uint32(m[dhcpCIAddr:]) == 0 && binary.BigEndian.Uint32(m[dhcpGIAddr:]) == 0 {
		m[dhcpFlags] |= dhcpBroadcast >> 8
	}
}

// DHCPToIPoIB gives a request of a client with an Ethernet address the form of RFC 4390, in place: hardware type 32, no
// hardware address, the broadcast flag, and a client identifier. If the client has sent none, the padding behind the
// options gets one that RFC 4361 derives from its MAC. DHCPToIPoIB returns false, and changes nothing, for other packets,
// and without room. The checksum is as in [WantBroadcast].
func DHCPToIPoIB(packet []byte) bool {
	m, err := dhcpOf(packet)
	if err != nil || m[dhcpOp] != dhcpRequest || m[dhcpHType] != dhcpEthernet {
		return false
	}
	mac := MAC(m[dhcpCHAddr:])
	var id []byte
	at, end := findOption(m, optionClientID)
	if at < 0 {
		// Type 255; an IAID; a DUID of type 3, the link-layer address, of hardware type 1.
		id = append([]byte{optionClientID, 15, 255}, mac[2:]...)
		id = append(append(id, 0, 3, 0, 1), mac[:]...)
		id = append(id, optionEnd)
		if end < 0 || len(m)-end < len(id) {
			return false
		}
	}
	rewriteDHCP(packet, func() {
		if at < 0 {
			copy(m[end:], id)
		}
		m[dhcpHType], m[dhcpHLen] = dhcpInfiniBand, 0
		clear(m[dhcpCHAddr:dhcpSName])
		wantBroadcast(m)
	})
	return true
}

// DHCPToEther is the inverse for the answer of a server, for a client with this MAC. It returns false, and changes
// nothing, for other packets.
func DHCPToEther(packet []byte, client MAC) bool {
	m, err := dhcpOf(packet)
	if err != nil || m[dhcpOp] != dhcpReply || m[dhcpHType] != dhcpInfiniBand {
		return false
	}
	rewriteDHCP(packet, func() {
		m[dhcpHType], m[dhcpHLen] = dhcpEthernet, 6
		copy(m[dhcpCHAddr:], client[:])
	})
	return true
}

// rewriteDHCP updates the UDP checksum after a change of the message (RFC 1624), if there is one.
func rewriteDHCP(packet []byte, change func()) {
	udp := packet[int(packet[0]&15)*4:]
	udp = udp[:binary.BigEndian.Uint16(udp[udpLength:])]
	before := checksum.Sum(udp, 0)
	change()
	after := checksum.Sum(udp, 0)
	old := binary.BigEndian.Uint16(udp[udpChecksum:])
	if old == 0 || before == after {
		return
	}
	fresh := ^checksum.Fold(uint64(^old) + uint64(^before) + uint64(after))
	if fresh == 0 {
		fresh = 0xffff
	}
	binary.BigEndian.PutUint16(udp[udpChecksum:], fresh)
}
