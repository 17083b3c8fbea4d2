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

// pair is two hosts on one segment. All faults are injected into the faulty one;
// the outside one probes it all the time, while a TCP connection carries data
// from the faulty one to the outside one.
type pair struct {
	faulty, outside *host
	segment         *nstest.Namespace // with a bridge, so that the outside keeps its link
	probe           *probe
	stream          *stream
	monitor         *monitor
	journal         *journal // of the faulty daemon
	kept            kept
}

// kept holds the properties of ib0 that survive every recovery and every restart
// of the daemon.
type kept struct {
	ifindex string
	addrs   []string
	routes  string
}

// faultyConfig has shorter times than the defaults, which are meant for
// operators.
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

// talk starts the traffic and its observers; both end with the test t.
func (p *pair) talk(t *testing.T) {
	t.Helper()
	faulty, outside := p.faulty.in(t), p.outside.in(t)
	p.probe = outside.probe(faulty)
	p.stream = faulty.stream(outside)
	p.monitor = faulty.monitor()
}

// macOf returns the MAC of a host's only netdev, which identifies its HCA.
func macOf(number int) string { return fmt.Sprintf("02:00:00:00:00:%02x", number+1) }

// plug creates the netdev of a host's HCA.
func (p *pair) plug(h *host, mac string) {
	port := fmt.Sprintf("port%d", h.number)
	nstest.Veth(h.tb, h.Namespace, "new0", p.segment, port, underlayMTU)
	p.segment.Run("ip", "link", "set", port, "master", "br0")
	h.Run("ip", "link", "set", "new0", "down")
	h.Run("ip", "link", "set", "new0", "name", nstest.Dev, "address", mac)
	h.Run("ip", "link", "set", nstest.Dev, "up")
	// The kernel drops frames until then. It answers the other host's datagrams with "port
	// unreachable" at once, and retries the ARP request for that only after a second.
	h.WaitOperational(nstest.Dev)
	p.segment.WaitOperational(port)
	h.addUnderlay()
}

// addUnderlay adds the netdev's missing addresses.
func (h *host) addUnderlay() {
	h.Run("ip", "addr", "replace", nstest.IPv4(h.number)+"/24", "dev", nstest.Dev)
	h.AddIPv6(nstest.Dev, nstest.IPv6(h.number)+"/64")
}

// unplug deletes the netdev.
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
	p.journal = p.faulty.daemon.followEvents()
}

// startConfigured starts the daemon with a configuration file.
func (h *host) startConfigured() {
	h.tb.Helper()
	file := filepath.Join(h.dir, "ipoibd.yaml")
	if err := os.WriteFile(file, []byte(faultyConfig), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	control := filepath.Join(h.dir, "control.sock")
	h.daemon = launch(h.tb, h.Namespace, control, "run", "--config", file, "--control", control, "--log-level", "debug", "--allow-faults")
}

// restart restarts the faulty host's daemon, so that its history is empty.
func (p *pair) restart() {
	p.faulty.daemon.stop()
	p.resume()
}

// resume starts a daemon after the previous one has ended.
func (p *pair) resume() {
	p.faulty.tb.Helper()
	p.faulty.startConfigured()
	p.faulty.waitCarrier()
	p.journal = p.faulty.daemon.followEvents()
}

// keeps reads the properties in kept.
func (h *host) keeps() kept {
	h.tb.Helper()
	index, _, _ := strings.Cut(h.Run("ip", "-o", "link", "show", ifName), ":")
	routes := strings.ReplaceAll(h.Run("ip", "route", "show", "dev", ifName)+h.Run("ip", "-6", "route", "show", "dev", ifName), "linkdown ", "")
	return kept{index, h.addrs(), routes}
}

// requireKept compares the properties in kept with those before, and checks the
// monitor.
func (p *pair) requireKept(t *testing.T) {
	t.Helper()
	now := p.faulty.keeps()
	if now.ifindex != p.kept.ifindex || !slices.Equal(now.addrs, p.kept.addrs) || now.routes != p.kept.routes {
		t.Errorf("%s has changed from %+v to %+v", ifName, p.kept, now)
	}
	p.monitor.requireKept(t)
}
