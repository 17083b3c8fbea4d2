package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// pair is two hosts on one segment. Everything goes wrong at the faulty one; the
// outside one asks it for echoes all the time, while a TCP connection of the
// faulty one carries data there.
type pair struct {
	faulty, outside *host
	segment         *nstest.Namespace // with a bridge, so that the outside keeps its link
	probe           *probe
	stream          *stream
	monitor         *monitor
	journal         *journal // of the faulty daemon
	kept            kept
}

// kept is what ib0 keeps through every recovery, and every daemon that adopts it.
type kept struct {
	ifindex string
	addrs   []string
	routes  string
}

// faultyConfig has short times, where the defaults are made for people.
const faultyConfig = `
devices:
  - name: soft
    underlay: ` + nstest.Dev + `
    grace: 3s
    give_up_after: 3s
interfaces:
  - name: ` + ifName + `
`

// newFaultyPair joins the hosts and starts the traffic.
func newFaultyPair(t *testing.T) *pair {
	t.Helper()
	p := newQuietPair(t)
	p.talk(t)
	return p
}

// newQuietPair joins the hosts.
func newQuietPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{segment: nstest.New(t)}
	p.segment.Run("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	p.segment.Run("ip", "link", "set", "br0", "up")
	for i, h := range []**host{&p.faulty, &p.outside} {
		*h = &host{Namespace: nstest.New(t), tb: t, number: i, dir: shortDir(t)}
		p.plug(*h, macOf(i))
	}
	p.join()
	return p
}

// talk starts the traffic and what watches it; both end with the test t.
func (p *pair) talk(t *testing.T) {
	t.Helper()
	faulty, outside := p.faulty.in(t), p.outside.in(t)
	p.probe = outside.probe(faulty)
	p.stream = faulty.stream(outside)
	p.monitor = faulty.monitor()
}

// macOf is the address of a host's one netdev, which its HCA is known by.
func macOf(number int) string { return fmt.Sprintf("02:00:00:00:00:%02x", number+1) }

// plug gives a host the netdev of its HCA.
func (p *pair) plug(h *host, mac string) {
	port := fmt.Sprintf("port%d", h.number)
	nstest.Veth(h.tb, h.Namespace, "new0", p.segment, port, underlayMTU)
	p.segment.Run("ip", "link", "set", port, "master", "br0")
	h.Run("ip", "link", "set", "new0", "down")
	h.Run("ip", "link", "set", "new0", "name", nstest.Dev, "address", mac)
	h.Run("ip", "link", "set", nstest.Dev, "up")
	h.addUnderlay()
}

// addUnderlay gives the netdev its addresses, as far as it lacks them.
func (h *host) addUnderlay() {
	h.Run("ip", "addr", "replace", nstest.IPv4(h.number)+"/24", "dev", nstest.Dev)
	h.Run("ip", "addr", "replace", nstest.IPv6(h.number)+"/64", "dev", nstest.Dev, "nodad")
}

// unplug takes it away.
func (h *host) unplug() { h.Run("ip", "link", "del", nstest.Dev) }

func (p *pair) join() {
	for _, h := range []*host{p.faulty, p.outside} {
		h.startConfigured()
		h.Run("ip", "link", "set", ifName, "up")
		h.addAddrs(ifName)
	}
	for _, h := range []*host{p.faulty, p.outside} {
		h.waitCarrier()
	}
	p.outside.waitReaches(p.faulty)
	p.kept = p.faulty.keeps()
	p.journal = p.faulty.daemon.follow()
}

// startConfigured runs the daemon by a configuration file.
func (h *host) startConfigured() {
	h.tb.Helper()
	file := filepath.Join(h.dir, "ipoibd.yaml")
	if err := os.WriteFile(file, []byte(faultyConfig), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	control := filepath.Join(h.dir, "control.sock")
	h.daemon = launch(h.tb, h.Namespace, control, "run", "--config", file, "--control", control, "--log-level", "debug", "--allow-faults")
}

// restart gives the faulty host a new daemon, of which no recovery is known.
func (p *pair) restart() {
	p.faulty.daemon.stop()
	p.resume()
}

// resume starts it after the end of the one before.
func (p *pair) resume() {
	p.faulty.tb.Helper()
	p.faulty.startConfigured()
	p.faulty.waitCarrier()
	p.journal = p.faulty.daemon.follow()
}

// keeps reads what is to be kept.
func (h *host) keeps() kept {
	h.tb.Helper()
	index, _, _ := strings.Cut(h.Run("ip", "-o", "link", "show", ifName), ":")
	routes := strings.ReplaceAll(h.Run("ip", "route", "show", "dev", ifName)+h.Run("ip", "-6", "route", "show", "dev", ifName), "linkdown ", "")
	return kept{index, h.addrs(), routes}
}

// requireKept compares with what was kept before, and asks the monitor.
func (p *pair) requireKept(t *testing.T) {
	t.Helper()
	now := p.faulty.keeps()
	if now.ifindex != p.kept.ifindex || !slices.Equal(now.addrs, p.kept.addrs) || now.routes != p.kept.routes {
		t.Errorf("%s was %+v, is %+v", ifName, p.kept, now)
	}
	p.monitor.requireKept(t)
}
