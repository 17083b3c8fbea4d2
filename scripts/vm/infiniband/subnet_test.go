package infiniband

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m, kernel.AMD64)) }

// carrierLimit bounds how long the kernel's IPoIB takes to join the broadcast group, with its retries after requests
// that were lost while the guest booted: ten times its duration on an idle machine.
const carrierLimit = time.Minute

// member describes a guest on a subnet.
type member struct {
	series kernel.Series
	hosts  []int // whose ports its HCAs have: that of the first is ibwire0
	// programs of this machine that it needs besides those of every guest
	programs []string
	counted  bool // guest.Spec.Counted
}

// boot boots guests on a subnet, and loads their modules for InfiniBand.
func boot(t *testing.T, s *sm.Subnet, members ...member) []*guest.Guest {
	t.Helper()
	var specs []guest.Spec
	for _, m := range members {
		spec := guest.Spec{Series: m.series, Programs: m.programs, Counted: m.counted}
		for _, host := range m.hosts {
			spec.NICs = append(spec.NICs, guest.NIC{Wire: s.Wire(host)})
		}
		specs = append(specs, spec)
	}
	guests := guest.BootAll(t, specs...)
	for i, g := range guests {
		var guids []uint64
		for _, host := range members[i].hosts {
			guids = append(guids, s.GUID(host))
		}
		g.LoadInfiniBand(guids...)
	}
	return guests
}

// waitFor waits until a file of a guest contains a text.
func waitFor(t *testing.T, g *guest.Guest, file, text string) {
	t.Helper()
	if !nstest.Poll(carrierLimit, func() bool { return g.Try("grep", "-qsF", text, file) }) {
		t.Fatalf("%s does not contain %q after %v\n%s%s", file, text, carrierLimit, g.Run("ip", "addr"), g.Run("sh", "-c", "dmesg | tail -n 40"))
	}
}

// waitActive waits until the port of an HCA is active.
func waitActive(t *testing.T, g *guest.Guest, hca int) {
	t.Helper()
	waitFor(t, g, fmt.Sprintf("/sys/class/infiniband/ibwire%d/ports/1/state", hca), "ACTIVE")
}

// read returns the text of a file of a guest, without the last line end.
func read(g *guest.Guest, file string) string { return strings.TrimSpace(g.Run("cat", file)) }
