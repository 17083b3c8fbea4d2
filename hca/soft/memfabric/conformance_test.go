package memfabric_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport/transporttest"
)

var (
	addrA6 = netip.MustParseAddr("2001:db8::1")
	addrB6 = netip.MustParseAddr("2001:db8::2")
)

func TestConformance(t *testing.T) {
	transporttest.Each(t, func(t *testing.T, test func(t *testing.T, a, b transporttest.Host)) {
		synctest.Test(t, func(t *testing.T) {
			f := memfabric.New(1)
			defer f.Close()
			a := f.Attach("a", transporttest.MTU, addrA6, addrA)
			b := f.Attach("b", transporttest.MTU, addrB6, addrB)
			test(t, transporttest.Host{Transport: a, Underlay: a, IPv4: addrA, IPv6: addrA6},
				transporttest.Host{Transport: b, Underlay: b, IPv4: addrB, IPv6: addrB6})
		})
	})
}
