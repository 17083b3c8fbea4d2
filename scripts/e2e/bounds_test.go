package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// Interfaces come up at the ends of the ranges that the configuration accepts: with the
// smallest and the largest queues, the smallest MTU and the shortest times. One has
// queues of odd lengths.
func TestEndsOfTheRangesWork(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	file, control := filepath.Join(h.dir, "ipoibd.yaml"), filepath.Join(h.dir, "control.sock")
	text := fmt.Sprintf(`
control: %s
devices:
  - {name: soft, underlay: %s, grace: 100ms, give_up_after: 1s}
interfaces:
  - {name: ib0, send_wrs: 128, recv_wrs: 64, mtu: 68}
  - {name: ib1, send_wrs: 16384, recv_wrs: 16384, mtu: 1444}
  - {name: ib2, send_wrs: 131, recv_wrs: 67, mtu: 1280}
`, control, nstest.Dev)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.daemon = launch(t, h.Namespace, control, "run", "--config", file)
	for _, name := range []string{"ib0", "ib1", "ib2"} {
		h.Run("ip", "link", "set", name, "up")
	}
	eventually(t, carrierLimit, "all interfaces are up", func() bool {
		up := 0
		for _, i := range h.daemon.status().Interfaces {
			if i.State == "up" {
				up++
			}
		}
		return up == 3
	})
	for i, mtu := range []int{68, 1444, 1280} {
		if got := h.daemon.status().Interfaces[i]; got.MTU != mtu {
			t.Errorf("%s has MTU %d, want %d", got.Name, got.MTU, mtu)
		}
	}
}
