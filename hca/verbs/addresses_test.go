package verbs

import (
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	here, err := addresses()
	if err != nil {
		t.Fatal(err)
	}
	home := netip.MustParseAddr("127.0.0.1")
	if !here[address{loopback(t), home}] || here[address{loopback(t) + 1, home}] {
		t.Errorf("%v, want %v on the loopback only", here, home)
	}
}
