//go:build !vm

package verbs

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"ipoibd/link/linktest/nstest"
)

// A port may have more netdevs, such as VLANs, than one socket may have
// memberships.
func TestMembershipOfManyNetdevs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	var indices []int
	for i := range 30 {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("many%d", i)}, PeerName: fmt.Sprintf("peer%d", i)}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(veth.Name)
		if err != nil {
			t.Fatal(err)
		}
		indices = append(indices, link.Attrs().Index)
	}
	for _, group := range testGroups {
		m, err := joinGroup(group, indices)
		if err != nil {
			t.Fatalf("%v: %v", group, err)
		}
		if !isMember(t, group) {
			t.Errorf("%v is not joined", group)
		}
		m.leave()
	}
}
