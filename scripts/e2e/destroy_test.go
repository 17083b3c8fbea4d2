package e2e

import (
	"maps"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// A process destroys the UDP sockets of the daemons on a host, those that receive and those that
// send, as "ss -K" does. The daemons replace them, say so, and reach all others again.
func TestDestroyedSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	one := func(args ...string) func(t *testing.T, a, b *host) []*host {
		return func(_ *testing.T, a, b *host) []*host {
			a.join(args...)
			b.join(args...)
			return []*host{a, b}
		}
	}
	for name, start := range map[string]func(t *testing.T, a, b *host) (all []*host){ // b's daemon is the last
		"exclusive": one(),
		"lanes":     one("--lanes", "4"),
		"shared": func(t *testing.T, a, b *host) []*host {
			dir := filepath.Join(shortDir(t), "share")
			return []*host{a.sharer(0, dir), a.sharer(2, dir), a.sharer(3, dir), b.sharer(1, dir)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := newHosts(t, 2)
			a := hosts[0]
			all := start(t, a, hosts[1])
			attacked := all[:len(all)-1]
			pingAll(all...)
			ports := a.boundPorts()
			for round, receivers := range []bool{true, false} {
				start := time.Now()
				for port, n := range ports {
					if (port == roce.Port) == receivers && a.DestroySockets(t, port) != n {
						t.Fatalf("%d sockets on port %d were not destroyed", n, port)
					}
				}
				for i, h := range attacked {
					eventually(t, repairLimit, "the sockets are replaced", func() bool {
						h.reaches(all[i+1]) // a send that fails
						return h.daemon.status().Devices[0].Counters["sockets_destroyed"] == uint64(round+1)
					})
				}
				for _, h := range all {
					for _, other := range all {
						if h != other {
							h.waitReaches(other)
							t.Logf("receivers %v: host %d reaches host %d after %v", receivers, h.number, other.number, time.Since(start).Round(time.Millisecond))
						}
					}
				}
				pingAll(all...)
				if now := a.boundPorts(); !maps.Equal(now, ports) {
					t.Errorf("sockets on the underlay by port: %v, want %v", now, ports)
				}
			}
			for _, h := range attacked {
				if n := strings.Count(h.daemon.log.String(), "another process has destroyed the UDP sockets"); n != 2 {
					t.Errorf("host %d logs %d times that its sockets were destroyed, want 2", h.number, n)
				}
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
