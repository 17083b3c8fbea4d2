package ipoib

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// membershipText holds packets made by scapy, see testdata/membership.py.
//
//go:embed testdata/membership.txt
var membershipText string

func TestScapyMakesTheSameMembershipPackets(t *testing.T) {
	got := runWitness(t, "python3-scapy", nil, "/usr/bin/python3", "testdata/membership.py")
	if got != membershipText {
		t.Errorf("output of testdata/membership.py differs from testdata/membership.txt:\n%s", got)
	}
}

// membershipPackets returns the packets of membershipText by name.
func membershipPackets() map[string][]byte {
	out := map[string][]byte{}
	for line := range strings.Lines(membershipText) {
		f := strings.Fields(line)
		out[f[0]] = unhex(f[1])
	}
	return out
}

func typeOf(packet []byte) EtherType {
	if packet[0]>>4 == 4 {
		return EtherTypeIPv4
	}
	return EtherTypeIPv6
}

func TestParseMembership(t *testing.T) {
	want := map[string]string{
		"igmp_our_query":           "query",
		"igmp_query_within_27.2s":  "query",
		"igmp_query_of_a_group":    "",
		"igmp_query_of_version_2":  "query",
		"igmp_query_of_version_1":  "query",
		"igmp_report_of_version_1": "answer joined [239.1.1.1]",
		"igmp_report_of_version_2": "answer joined [239.1.1.1]",
		"igmp_leave":               "left [239.1.1.1]",
		"igmp_report_of_version_3": "joined [239.1.1.1 239.1.1.2 239.1.1.4 239.1.1.5 239.1.1.6] left [239.1.1.3]",
		"mld_our_query":            "query",
		"mld_query_within_65.552s": "query",
		"mld_query_of_a_group":     "",
		"mld_query_of_version_1":   "query",
		"mld_report_of_version_1":  "answer joined [ff05::1:3]",
		"mld_done":                 "left [ff05::1:3]",
		"mld_report_of_version_2":  "joined [ff05::1:3 ff02::1:ff00:7 ff05::5] left [ff05::4]",
	}
	packets := membershipPackets()
	if len(packets) != len(want) {
		t.Errorf("%d packets, want %d", len(packets), len(want))
	}
	for name, packet := range packets {
		typ := typeOf(packet)
		if query := strings.Contains(name, "query"); !IsMembership(typ, packet) || IsMembershipQuery(typ, packet) != query {
			t.Errorf("%s: membership %v, query %v", name, IsMembership(typ, packet), IsMembershipQuery(typ, packet))
		}
		// A frame is padded to the minimum of Ethernet.
		m, err := ParseMembership(typ, append(bytes.Clone(packet), 0, 0, 0), 16)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := describeMembership(m); got != want[name] {
			t.Errorf("%s: %s, want %s", name, got, want[name])
		}
	}
}

func describeMembership(m Membership) string {
	var out []string
	if m.Query {
		out = append(out, "query")
	}
	if m.Answer {
		out = append(out, "answer")
	}
	if len(m.Joined) > 0 {
		out = append(out, fmt.Sprintf("joined %v", m.Joined))
	}
	if len(m.Left) > 0 {
		out = append(out, fmt.Sprintf("left %v", m.Left))
	}
	return strings.Join(out, " ")
}

// TestMembershipIsNotBelieved checks that no packet with one byte changed, or cut short, means anything else than before,
// except for bytes that the checksum does not cover.
func TestMembershipIsNotBelieved(t *testing.T) {
	for name, packet := range membershipPackets() {
		typ := typeOf(packet)
		whole, err := ParseMembership(typ, packet, 16)
		if err != nil {
			t.Fatal(err)
		}
		header := len(packet) - len(membershipMessage(typ, packet))
		for i := header; i < len(packet); i++ {
			changed := bytes.Clone(packet)
			changed[i] ^= 0x41
			if m, err := ParseMembership(typ, changed, 16); err == nil {
				t.Errorf("%s with byte %d changed: %s", name, i, describeMembership(m))
			}
		}
		for n := range packet {
			if m, err := ParseMembership(typ, packet[:n], 16); err == nil {
				t.Errorf("%s cut to %d bytes: %s", name, n, describeMembership(m))
			}
		}
		few, err := ParseMembership(typ, packet, 1)
		if err != nil || len(few.Joined)+len(few.Left) > 1 || few.Query != whole.Query {
			t.Errorf("%s with a limit of one record: %+v, %v", name, few, err)
		}
	}
	routed := membershipPackets()["mld_our_query"]
	routed[ipv6HopLimit]++
	if _, err := ParseMembership(EtherTypeIPv6, routed, 0); err == nil {
		t.Error("accepted a query of MLD that a router has forwarded")
	}
}

func TestAppendMembershipQuery(t *testing.T) {
	packets := membershipPackets()
	for name, src := range map[string]string{"igmp_our_query": "10.0.0.7", "mld_our_query": "fe80::7"} {
		if got := AppendMembershipQuery(nil, netip.MustParseAddr(src)); !bytes.Equal(got, packets[name]) {
			t.Errorf("query from %s:\n%x, want\n%x", src, got, packets[name])
		}
	}
}

func FuzzParseMembership(f *testing.F) {
	for _, packet := range membershipPackets() {
		f.Add(packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		for _, typ := range []EtherType{EtherTypeIPv4, EtherTypeIPv6, EtherTypeARP} {
			before := bytes.Clone(packet)
			m, err := ParseMembership(typ, packet, 4)
			if !bytes.Equal(before, packet) {
				t.Fatal("ParseMembership has changed the packet")
			}
			if err == nil && !IsMembership(typ, packet) || IsMembershipQuery(typ, packet) && !IsMembership(typ, packet) {
				t.Fatalf("%v: membership %v, query %v, error %v", typ, IsMembership(typ, packet), IsMembershipQuery(typ, packet), err)
			}
			if m.Query && !IsMembershipQuery(typ, packet) || len(m.Joined)+len(m.Left) > 4 {
				t.Fatalf("%v: %+v", typ, m)
			}
			for _, ip := range append(m.Joined, m.Left...) {
				if !ip.IsMulticast() || ip.Is4() != (typ == EtherTypeIPv4) {
					t.Fatalf("%v: group %v", typ, ip)
				}
			}
		}
	})
}
