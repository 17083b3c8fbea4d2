package ipoib

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"ipoibd/hca"
)

// The witnesses are independent programs. They reveal mistakes that our encoder and
// decoder have in common.

// TestScapyMakesTheSamePackets checks that scapy produces testdata/nd.txt.
func TestScapyMakesTheSamePackets(t *testing.T) {
	got := runWitness(t, "python3-scapy", nil, "/usr/bin/python3", "testdata/nd.py")
	if got != ndText {
		t.Errorf("output of testdata/nd.py differs from testdata/nd.txt:\n%s", got)
	}
}

// runWitness runs a program with input and returns what it prints.
func runWitness(t *testing.T, debianPackage string, input []byte, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = bytes.NewReader(input)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v (it comes with the Debian package %s)\n%s", name, err, debianPackage, &stderr)
	}
	return string(out)
}

// tsharkFields are the fields that tshark prints; the first three hold its
// complaints.
var tsharkFields = []string{
	"_ws.malformed", "_ws.expert.severity", "icmpv6.checksum.status",
	"ipoib.type", "ipoib.reserved", "arp.hw.type", "arp.opcode", "arp.src.hw", "arp.src.proto_ipv4",
	"arp.dst.hw", "arp.dst.proto_ipv4", "ip.dst", "ipv6.dst", "udp.length", "icmpv6.type",
	"icmpv6.opt.type", "icmpv6.opt.linkaddr",
}

// tshark decodes messages from a capture of link type LINKTYPE_IPOIB and returns
// a line per message: its non-empty fields, as name=value.
func tshark(t *testing.T, messages [][]byte) []string {
	t.Helper()
	args := []string{"-r", "-", "-n", "-T", "fields", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	out := runWitness(t, "tshark", capture(messages), "tshark", args...)
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, nameFields(strings.TrimSuffix(line, "\n")))
	}
	return lines
}

func nameFields(line string) string {
	var named []string
	for i, value := range strings.Split(line, "\t") {
		if value != "" {
			named = append(named, tsharkFields[i]+"="+value)
		}
	}
	return strings.Join(named, " ")
}

// capture returns a pcap file of messages. LINKTYPE_IPOIB is 242; the 40 bytes of
// a GRH come before each message, zero for a packet without one.
func capture(messages [][]byte) []byte {
	le := binary.LittleEndian
	file := le.AppendUint32(nil, 0xa1b2c3d4)
	file = le.AppendUint16(le.AppendUint16(file, 2), 4)
	for _, word := range []uint32{0, 0, 65535, 242} {
		file = le.AppendUint32(file, word)
	}
	for _, msg := range messages {
		n := uint32(hca.GRHLen + len(msg))
		file = le.AppendUint32(le.AppendUint64(file, 0), n)
		file = append(le.AppendUint32(file, n), make([]byte, hca.GRHLen)...)
		file = append(file, msg...)
	}
	return file
}

// message puts the header before a packet.
func message(typ EtherType, packet []byte) []byte {
	msg := make([]byte, HeaderLen, HeaderLen+len(packet))
	PutHeader(msg, typ)
	return append(msg, packet...)
}

// Datagrams from port 7 to port 9 with the text "ipoib", made by scapy.
var (
	udp4 = unhex(`45000021000100004011f6c7c0000201c000020200070009000d40e669706f6962`)
	udp6 = unhex(`60000000000d114020010db800000000000000000000000a20010db800000000000000000000000b00070009000d696369706f6962`)
)

// translated returns a packet of testdata/nd.txt translated into the IPoIB form.
func translated(t *testing.T, name string, limit int) []byte {
	t.Helper()
	packet, err := TranslateND(nil, golden(t, name, FormEther), FormEther, FormIPoIB, limit, known)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// The nodes' addresses as tshark prints them; those in options are preceded by
// the two reserved bytes.
const (
	hexA = "00000048fe80000000000000020000fffe00000a"
	hexB = "0012ab49fe80000000000000020000fffe00000b"
	optA = "0000" + hexA
	optB = "0000" + hexB
)

// TestTsharkDecodesBodies checks that tshark decodes each kind of message as
// intended, with correct ICMPv6 checksums (1) and without complaints.
func TestTsharkDecodesBodies(t *testing.T) {
	query := ARP{ARPRequest, addrA, ip("192.0.2.1"), Addr{}, ip("192.0.2.2")}
	const arp = "ipoib.type=0x0806 ipoib.reserved=0x0000 arp.hw.type=32 "
	const nd = "icmpv6.checksum.status=1 ipoib.type=0x86dd ipoib.reserved=0x0000 "
	v6 := func(packet []byte) []byte { return message(EtherTypeIPv6, packet) }
	cases := []struct {
		name string
		msg  []byte
		want string
	}{
		{
			"ARP request", message(EtherTypeARP, query.Append(nil)),
			arp + "arp.opcode=1 arp.src.hw=" + hexA + " arp.src.proto_ipv4=192.0.2.1" +
				" arp.dst.hw=" + strings.Repeat("0", 40) + " arp.dst.proto_ipv4=192.0.2.2",
		},
		{
			"ARP reply", message(EtherTypeARP, arpReply.Append(nil)),
			arp + "arp.opcode=2 arp.src.hw=" + hexA + " arp.src.proto_ipv4=192.0.2.1" +
				" arp.dst.hw=" + hexB + " arp.dst.proto_ipv4=192.0.2.2",
		},
		{
			"IPv4", message(EtherTypeIPv4, udp4),
			"ipoib.type=0x0800 ipoib.reserved=0x0000 ip.dst=192.0.2.2 udp.length=13",
		},
		{
			"IPv6", v6(udp6),
			"ipoib.type=0x86dd ipoib.reserved=0x0000 ipv6.dst=2001:db8::b udp.length=13",
		},
		{
			"unsolicited NA", v6(AppendUnsolicitedNA(nil, ip("2001:db8::b"), addrB)),
			nd + "ipv6.dst=ff02::1 icmpv6.type=136 icmpv6.opt.type=2 icmpv6.opt.linkaddr=" + optB,
		},
		{
			"NS", v6(AppendNS(nil, ip("fe80::a"), ip("2001:db8::b"), addrA)),
			nd + "ipv6.dst=ff02::1:ff00:b icmpv6.type=135 icmpv6.opt.type=1 icmpv6.opt.linkaddr=" + optA,
		},
		{
			"probe", v6(AppendNS(nil, ip("::"), ip("2001:db8::b"), addrA)),
			nd + "ipv6.dst=ff02::1:ff00:b icmpv6.type=135",
		},
		{
			"translated RS", v6(translated(t, "rs", roomy)),
			nd + "ipv6.dst=ff02::2 icmpv6.type=133 icmpv6.opt.type=1 icmpv6.opt.linkaddr=" + optA,
		},
		{
			"translated RA", v6(translated(t, "ra", roomy)),
			nd + "ipv6.dst=ff02::1 icmpv6.type=134 icmpv6.opt.type=1,5,3,25 icmpv6.opt.linkaddr=" + optB,
		},
		{
			"translated NS", v6(translated(t, "ns", roomy)),
			nd + "ipv6.dst=ff02::1:ff00:b icmpv6.type=135 icmpv6.opt.type=1 icmpv6.opt.linkaddr=" + optA,
		},
		{
			"translated probe", v6(translated(t, "dad", roomy)),
			nd + "ipv6.dst=ff02::1:ff00:a icmpv6.type=135 icmpv6.opt.type=14",
		},
		{
			"translated NA", v6(translated(t, "na", roomy)),
			nd + "ipv6.dst=2001:db8::a icmpv6.type=136 icmpv6.opt.type=2 icmpv6.opt.linkaddr=" + optB,
		},
		{
			"translated Redirect", v6(translated(t, "redirect", roomy)),
			nd + "ipv6.dst=2001:db8::a,2001:db8:9::9 udp.length=72 " +
				"icmpv6.type=137 icmpv6.opt.type=2,4 icmpv6.opt.linkaddr=" + optA,
		},
		{
			"Redirect cut short", v6(translated(t, "redirect", 200)),
			nd + "ipv6.dst=2001:db8::a,2001:db8:9::9 udp.length=72 " +
				"icmpv6.type=137 icmpv6.opt.type=2,4 icmpv6.opt.linkaddr=" + optA,
		},
	}
	var messages [][]byte
	for _, c := range cases {
		messages = append(messages, c.msg)
	}
	got := tshark(t, messages)
	if len(got) != len(cases) {
		t.Fatalf("tshark decodes %d of %d messages", len(got), len(cases))
	}
	for i, c := range cases {
		if got[i] != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got[i], c.want)
		}
	}
}

// TestTsharkComplains checks that tshark detects mistakes: it must complain about
// a wrong checksum and a truncated body.
func TestTsharkComplains(t *testing.T) {
	na := AppendUnsolicitedNA(nil, ip("2001:db8::b"), addrB)
	na[ndChecksum] ^= 1
	got := tshark(t, [][]byte{message(EtherTypeIPv6, na), message(EtherTypeARP, arpBytes[:30])})
	if len(got) != 2 || !strings.Contains(got[0], "icmpv6.checksum.status=0") || !strings.Contains(got[0], "_ws.expert.severity=") {
		t.Errorf("tshark does not report a wrong checksum: %q", got)
	}
	if len(got) != 2 || !strings.Contains(got[1], "_ws.malformed=") {
		t.Errorf("ARP cut short: %q", got)
	}
}
