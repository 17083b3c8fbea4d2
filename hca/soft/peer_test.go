package soft

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPeerIsOneHost(t *testing.T) {
	for _, c := range []struct{ addr, underlay, want string }{
		{"192.0.2.1", "eth0", ""},
		{"::ffff:192.0.2.1", "eth0", ""},
		{"169.254.1.1", "eth0", ""},
		{"2001:db8::1", "eth0", ""},
		{"fe80::1%eth0", "eth0", ""},
		{"127.0.0.1", "lo", ""},
		{"::1", "lo", ""},
		{"127.0.0.1", "eth0", "loopback"},
		{"::ffff:127.0.0.1", "eth0", "loopback"},
		{"::1", "", "loopback"},
		{"0.0.0.0", "eth0", "unspecified"},
		{"::", "eth0", "unspecified"},
		{"::ffff:0.0.0.0", "eth0", "unspecified"},
		{"224.0.0.1", "eth0", "multicast"},
		{"239.1.1.1", "eth0", "multicast"},
		{"ff02::1", "eth0", "multicast"},
		{"ff02::1%eth0", "eth0", "multicast"},
		{"::ffff:224.0.0.1", "eth0", "multicast"},
		{"255.255.255.255", "eth0", "broadcast"},
		{"fe80::1", "eth0", "without a zone"},
	} {
		err := CheckPeer(netip.MustParseAddr(c.addr), c.underlay)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %s: %v, want %q", c.addr, c.underlay, err, c.want)
		}
	}
}
