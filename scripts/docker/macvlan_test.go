package docker

import (
	"fmt"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// testMacvlan puts containers behind the ib0 of their hosts by Docker's macvlan driver. The daemon is a container in the
// host's network namespace. All containers and both hosts reach each other.
func testMacvlan(t *testing.T, hostA, hostB *engine) {
	hosts := []*engine{hostA.in(t), hostB.in(t)}
	addresses := [][]string{{"10.9.0.1"}, {"10.9.0.2"}}
	for i, e := range hosts {
		args := append([]string{"run", "--detach", "--name", "host-ipoibd", "--network", "host"}, readmeFlags(t)...)
		e.do(append(args, staticImage, "run", "--underlay", nstest.Dev, "--remove", "--up", "--address", addresses[i][0]+"/24")...)
		t.Cleanup(func() {
			_ = e.try("rm", "--force", "behind1", "behind2")
			_ = e.try("network", "rm", "behind")
			_ = e.try("stop", "host-ipoibd")
			_ = e.try("rm", "--force", "host-ipoibd")
		})
		eventually(t, "there is an ib0", func() bool { return e.Command("ip", "link", "show", "ib0").Run() == nil },
			func() string { return e.logs("host-ipoibd") })
		e.do("network", "create", "--driver", "macvlan", "--opt", "parent=ib0", "--subnet", "10.9.0.0/24", "behind")
		for n, name := range []string{"behind1", "behind2"} {
			address := fmt.Sprintf("10.9.0.%d", 10*(i+1)+n)
			e.do("run", "--detach", "--stop-timeout", "0", "--name", name, "--network", "behind", "--ip", address, appImage, "sleep", "infinity")
			addresses[i] = append(addresses[i], address)
		}
	}
	for i, e := range hosts {
		for _, to := range addresses[1-i] {
			for _, from := range []string{"behind1", "behind2"} {
				ping := func(count string) error {
					return e.try("exec", from, "ping", "-n", "-q", "-c", count, "-i", "0.05", "-W", "2", to)
				}
				eventually(t, from+" reaches "+to, func() bool { return ping("1") == nil }, nil)
				if err := ping("20"); err != nil {
					t.Errorf("%s loses pings to %s: %v", from, to, err)
				}
			}
			if err := e.Command("ping", "-n", "-q", "-c", "20", "-i", "0.05", "-W", "2", to).Run(); err != nil {
				t.Errorf("the host loses pings to %s: %v", to, err)
			}
		}
	}
}
