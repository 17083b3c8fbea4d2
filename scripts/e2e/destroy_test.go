package e2e

import (
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// A process destroys the UDP sockets of the daemon on a host, those that receive and those that
// send, as "ss -K" does. The daemon replaces them, says so, and reaches the other host again.
func TestDestroyedSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for name, args := range map[string][]string{"exclusive": nil, "lanes": {"--lanes", "4"}} {
		t.Run(name, func(t *testing.T) {
			all := newHosts(t, 2)
			a, b := all[0], all[1]
			a.join(args...)
			b.join(args...)
			pingAll(all...)
			ports := a.boundPorts()
			for round, receivers := range []bool{true, false} {
				start := time.Now()
				var doomed []uint16 // all at once, because the daemon replaces all as soon as it misses one
				want := 0
				for port, n := range ports {
					if (port == roce.Port) == receivers {
						doomed, want = append(doomed, port), want+n
					}
				}
				if n := a.DestroySockets(t, doomed...); n != want {
					t.Fatalf("%d sockets on the ports %v were destroyed, want %d", n, doomed, want)
				}
				eventually(t, repairLimit, "the sockets are replaced", func() bool {
					a.reaches(b) // a send that fails
					return a.daemon.status().Devices[0].Counters["sockets_destroyed"] == uint64(round+1)
				})
				for _, ends := range [][2]*host{{a, b}, {b, a}} {
					ends[0].waitReaches(ends[1])
					t.Logf("receivers %v: host %d reaches host %d after %v", receivers, ends[0].number, ends[1].number, time.Since(start).Round(time.Millisecond))
				}
				pingAll(all...)
				if now := a.boundPorts(); !maps.Equal(now, ports) {
					t.Errorf("sockets on the underlay by port: %v, want %v", now, ports)
				}
			}
			if n := strings.Count(a.daemon.log.String(), "another process has destroyed the UDP sockets"); n != 2 {
				t.Errorf("the daemon logs %d times that its sockets were destroyed, want 2", n)
			}
		})
	}
}

// boundPorts returns the UDP ports of the sockets that are bound to the underlay, and how many
// sockets each has.
func (h *host) boundPorts() map[uint16]int {
	h.tb.Helper()
	ports := map[uint16]int{}
	for _, match := range regexp.MustCompile("%"+nstest.Dev+`:(\d+)`).FindAllStringSubmatch(h.Run("ss", "-Huna"), -1) {
		port, err := strconv.ParseUint(match[1], 10, 16)
		if err != nil {
			h.tb.Fatal(err)
		}
		ports[uint16(port)]++
	}
	if ports[roce.Port] == 0 || len(ports) < 2 {
		h.tb.Fatalf("sockets on the underlay by port: %v, want those of a daemon", ports)
	}
	return ports
}
