package ipoib

import (
	"net/netip"
	"testing"
)

var (
	packet4 = unhex("45000014 00000000 40110000 c0000201 e0000116")
	packet6 = unhex("60000000 00003b40 20010db8000000000000000000000001 ff020000000000000000000000000002")
)

func TestAddressesOfPackets(t *testing.T) {
	for _, c := range []struct {
		name     string
		typ      EtherType
		packet   []byte
		src, dst string // empty: none
	}{
		{"IPv4", EtherTypeIPv4, packet4, "192.0.2.1", "224.0.1.22"},
		{"IPv6", EtherTypeIPv6, packet6, "2001:db8::1", "ff02::2"},
		{"IPv6 in IPv4 frame", EtherTypeIPv4, packet6, "", ""},
		{"IPv4 in IPv6 frame", EtherTypeIPv6, append(packet4, packet4...), "", ""},
		{"IPv4 in ARP frame", EtherTypeARP, packet4, "", ""},
		{"empty", EtherTypeIPv4, nil, "", ""},
	} {
		checkIP(t, c.name+" source", c.src)(SourceIP(c.typ, c.packet))
		checkIP(t, c.name+" destination", c.dst)(DestIP(c.typ, c.packet))
	}
}

func checkIP(t *testing.T, name, want string) func(netip.Addr, bool) {
	return func(got netip.Addr, ok bool) {
		t.Helper()
		if ok != (want != "") || ok && got != ip(want) {
			t.Errorf("%s: got %v, %t; want %q", name, got, ok, want)
		}
	}
}

func TestAddressesOfTruncatedPackets(t *testing.T) {
	for typ, packet := range map[EtherType][]byte{EtherTypeIPv4: packet4, EtherTypeIPv6: packet6} {
		for n := range packet {
			if _, ok := SourceIP(typ, packet[:n]); ok {
				t.Errorf("%v: source of %d bytes", typ, n)
			}
			if _, ok := DestIP(typ, packet[:n]); ok {
				t.Errorf("%v: destination of %d bytes", typ, n)
			}
		}
	}
}
