package ipoib

import "testing"

// The example of RFC 4291, appendix A, as a link-local address.
func TestLinkLocal(t *testing.T) {
	if got := (MAC{0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde}).LinkLocal().String(); got != "fe80::3656:78ff:fe9a:bcde" {
		t.Error(got)
	}
}
