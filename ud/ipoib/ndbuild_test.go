package ipoib

import (
	"bytes"
	"testing"
)

// TestAppendUnsolicitedNAExactBytes compares the announcement with scapy's.
func TestAppendUnsolicitedNAExactBytes(t *testing.T) {
	got := AppendUnsolicitedNA([]byte("x"), ip("2001:db8::b"), addrB)
	if want := append([]byte("x"), golden(t, "na-all", FormIPoIB)...); !bytes.Equal(got, want) {
		t.Errorf("got % x\nwant % x", got, want)
	}
}

// TestAppendNSExactBytes compares the solicitation with scapy's.
func TestAppendNSExactBytes(t *testing.T) {
	got := AppendNS([]byte("x"), ip("2001:db8::a"), ip("2001:db8::b"), addrA)
	if want := append([]byte("x"), golden(t, "ns", FormIPoIB)...); !bytes.Equal(got, want) {
		t.Errorf("got % x\nwant % x", got, want)
	}
}

// TestAppendNSProbe checks that a probe has no source link-layer address: RFC
// 4861 section 4.3.
func TestAppendNSProbe(t *testing.T) {
	nd, err := ParseND(AppendNS(nil, ip("::"), ip("2001:db8::b"), addrA), FormIPoIB)
	if err != nil || nd.Link.Type != OptionNone || nd.Dst != ip("ff02::1:ff00:b") {
		t.Errorf("got %+v, %v, want a probe without an option", nd, err)
	}
}
