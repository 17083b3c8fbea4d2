package vm

import (
	"slices"
	"strings"
	"testing"

	"ipoibd/hca/hcatest"
)

// The witness accepts a packet, and sees each damage.
func TestVerifyMessage(t *testing.T) {
	tcp := hcatest.TCPHeader()
	if err := verifyMessage(tcp); err != nil {
		t.Errorf("%x: %v", tcp, err)
	}
	for what, spoil := range map[string]func([]byte) []byte{
		"the packet of IP": func(m []byte) []byte { return append(m, 0) },
		"layer IPv4":       func(m []byte) []byte { m[4+8]++; return m },
		"layer TCP":        func(m []byte) []byte { m[len(m)-1]++; return m },
	} {
		if err := verifyMessage(spoil(slices.Clone(tcp))); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
