package verbstest

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// netdev is the netdev of a device.
type netdev struct {
	t    testing.TB
	name string
}

func (n netdev) link() netlink.Link {
	n.t.Helper()
	l, err := netlink.LinkByName(n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// setUp brings the interface up or down.
func (n netdev) setUp(up bool) {
	n.t.Helper()
	if up {
		n.must(netlink.LinkSetUp(n.link()))
	} else {
		n.must(netlink.LinkSetDown(n.link()))
	}
}

// addAddr adds an address for the rest of the test.
func (n netdev) addAddr() {
	n.t.Helper()
	addr, err := netlink.ParseAddr("198.51.100.9/32")
	n.must(err)
	n.must(netlink.AddrAdd(n.link(), addr))
	n.t.Cleanup(func() { n.must(netlink.AddrDel(n.link(), addr)) })
}

func (n netdev) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}
