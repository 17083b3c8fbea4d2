package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// otherDev and otherIf are the second netdev of a host, and the interface of the
// HCA on it.
const (
	otherDev = "eth1"
	otherIf  = "ib1"
)

const twoDevicesConfig = `
devices:
  - name: soft0
    underlay: ` + nstest.Dev + `
  - name: soft1
    underlay: ` + otherDev + `
interfaces:
  - name: ` + ifName + `
    device: soft0
  - name: ` + otherIf + `
    device: soft1
`

// apartLimit is ten times the longest delay of an echo through the other device
// on a busy machine. A recovery would also appear in the journal.
const apartLimit = 500 * time.Millisecond

// A daemon has two HCAs, and one of them fails in every way: traffic through
// the other one is not affected.
func TestR28TwoDevicesAreApart(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	c := &host{Namespace: nstest.New(t), tb: t, number: 2, dir: shortDir(t)}
	a.addSecondDevice(c)
	other := *a // a, as seen by c
	other.number = 3
	for _, h := range []*host{b, c} {
		h.join()
	}
	a.joinTwice(&other, c)
	b.waitReaches(a)
	c.waitReaches(&other)

	said, before, mark := a.daemon.followEvents(), a.second(), time.Now()
	probe := c.probe(&other)
	for _, f := range []struct {
		what string
		do   func()
	}{
		{"operator's reset", func() { a.daemon.requirePost("/v1/reset", map[string]string{"scope": "device", "device": "soft0"}) }},
		{"fatal event", func() { a.daemon.inject(faultRequest{Kind: "device_fatal", Device: "soft0"}) }},
		{"hanging verb", func() {
			a.daemon.inject(faultRequest{Kind: "verb_hangs", Verb: "modify_qp", Device: "soft0"}, faultRequest{Kind: "send_error_err", Device: "soft0"})
			a.reaches(b)
		}},
		{"netdev away and back", func() {
			a.Run("ip", "link", "set", nstest.Dev, "down")
			a.Run("ip", "link", "set", nstest.Dev, "up")
			a.AddIPv6(nstest.Dev, nstest.IPv6(0)+"/64")
		}},
	} {
		f.do()
		t.Logf("%s: host 1 reaches it again after %v", f.what, b.waitReaches(a).Round(time.Millisecond))
	}
	probe.waitAnswered(t, repairLimit)
	t.Logf("longest silence of the other device: %v", probe.silence(mark))
	if s := probe.silence(mark); s > apartLimit {
		t.Errorf("the other device was silent for %v", s)
	}
	resets := 0
	for _, e := range said.since(0) {
		switch {
		case e.Scope == otherIf || e.Scope == "soft1":
			t.Errorf("the other device had a recovery: %+v", e)
		case e.Scope == "soft0" && e.Rung == resetDevice && e.Kind == entered:
			resets++
		}
	}
	if resets < 3 {
		t.Errorf("the device was reset %d times, want three", resets)
	}
	if now := a.second(); now != before {
		t.Errorf("the other queue pair is %+v, was %+v", now, before)
	}
}

// addSecondDevice connects a second netdev of h to that of c.
func (h *host) addSecondDevice(c *host) {
	h.tb.Helper()
	nstest.Veth(h.tb, h.Namespace, otherDev, c.Namespace, nstest.Dev, underlayMTU)
	h.Run("ip", "addr", "add", "198.51.100.1/24", "dev", otherDev)
	c.Run("ip", "addr", "add", "198.51.100.2/24", "dev", nstest.Dev)
}

// joinTwice starts the daemon with both HCAs: ib0 bears h's addresses, ib1 those
// of other, towards c alone.
func (h *host) joinTwice(other, c *host) {
	h.tb.Helper()
	file, control := filepath.Join(h.dir, "ipoibd.yaml"), filepath.Join(h.dir, "control.sock")
	if err := os.WriteFile(file, []byte(twoDevicesConfig), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	h.daemon = launch(h.tb, h.Namespace, control, "run", "--config", file, "--control", control, "--log-level", "debug", "--allow-faults")
	other.daemon = h.daemon
	h.Run("ip", "link", "set", ifName, "up")
	h.Run("ip", "link", "set", otherIf, "up")
	h.addAddrs(ifName)
	h.Run("ip", "addr", "add", other.ip4(), "peer", c.ip4(), "dev", otherIf)
	h.waitCarrier()
}

// second returns the queue pair of ib1.
func (h *host) second() qp {
	h.tb.Helper()
	for _, i := range h.daemon.status().Interfaces {
		if i.Name == otherIf && i.QP != nil {
			return *i.QP
		}
	}
	h.tb.Fatalf("%s has no queue pair", otherIf)
	return qp{}
}
