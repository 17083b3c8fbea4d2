package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// lldp sends LLDP frames as a program of the host.
func lldp(h *host, n int) {
	h.tb.Helper()
	port := newPacketSocket(h)
	for range n {
		port.send(ether(ipoib.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, mac(h.iface().MAC), 0x88cc, make([]byte, 60)))
	}
}

// The kernel drops what IPoIB cannot carry, and counts it by kind, also for an interface that a reload
// adds and after a hand-over, although the daemon may not load programs. The programs of a daemon that
// was killed are gone when the next one runs, even if that uses no eBPF. The daemon then drops
// these frames itself.
func TestFilterOfTheDaemon(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	config := "devices: [{name: soft, underlay: " + nstest.Dev + ", pkeys: [0xffff, 0x8001]}]\ninterfaces: [{name: " + ifName + "}"
	a.startWithFile(config + "]\n")
	a.Run("ip", "link", "set", ifName, "up")
	a.addAddrs(ifName)
	a.waitCarrier()
	b.join()
	pingAll(a, b)
	if got, want := a.daemon.process("CapEff", "CapPrm"), fmt.Sprintf("CapEff %016[1]x, CapPrm %016[1]x", 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	before := a.counted().Interfaces[0].Kernel
	a.expect("filtered", map[string]uint64{"tap_drop_filter_lldp": volley}, func() { lldp(a, volley) })
	pingAll(a, b)
	after := a.counted().Interfaces[0].Kernel
	if passed := after["tap_filter_passed"] - before["tap_filter_passed"]; passed == 0 {
		t.Error("the filter counts no frame of a ping")
	}
	if n := after["kernel_tx_dropped"] - before["kernel_tx_dropped"]; n != 0 {
		t.Errorf("the filtered frames are counted again, by %d, as the kernel's drops", n)
	}
	a.handOver()
	a.expect("filtered after a hand-over", map[string]uint64{"tap_drop_filter_lldp": volley}, func() { lldp(a, volley) })
	a.edit(config + ", {name: ib7, pkey: 0x8001}]\n")
	if got := a.reloads(); got != "ib7 added" {
		t.Errorf("reload: %q", got)
	}
	for _, i := range a.daemon.status().Interfaces {
		if _, filtered := i.Kernel["tap_filter_passed"]; !filtered {
			t.Errorf("%s has no filter:\n%s", i.Name, a.daemon.log)
		}
	}
	a.daemon.kill()
	a.start("--ebpf=false")
	a.waitCarrier()
	a.expect("not filtered", map[string]uint64{"tx_drop_ethertype": volley}, func() { lldp(a, volley) })
	if strings.Contains(a.daemon.log.String(), "eBPF") {
		t.Errorf("the daemon mentions eBPF, which is off:\n%s", a.daemon.log)
	}
}

// Without CAP_BPF the daemon works, and logs that once for debugging, however many interfaces it has.
func TestDaemonWithoutCapBPF(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	control, file := filepath.Join(h.dir, "control.sock"), filepath.Join(h.dir, "two.yaml")
	text := "control: " + control + `
devices:
  - underlay: ` + nstest.Dev + `
    pkeys: [0xffff, 0x8001]
interfaces:
  - name: ` + ifName + `
  - name: ib1
    pkey: 0x8001
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const missing = "--bounding-set=-bpf,-sys_admin"
	h.daemon = await(t, h.Namespace, control, h.Command("setpriv", missing, "--inh-caps=-bpf,-sys_admin", "--", os.Getenv(daemonEnv), "run", "--config", file, "--log-level", "debug"))
	h.Run("ip", "link", "set", ifName, "up")
	h.waitCarrier()
	var told []string
	for line := range strings.Lines(h.daemon.log.String()) {
		if strings.Contains(line, "eBPF") {
			told = append(told, line)
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "level=DEBUG") || !strings.Contains(told[0], "CAP_BPF") {
		t.Errorf("the log mentions eBPF in %d lines, want one that names CAP_BPF:\n%s", len(told), h.daemon.log)
	} else {
		t.Log(told[0])
	}
	for _, i := range h.daemon.status().Interfaces {
		if _, filtered := i.Kernel["tap_filter_passed"]; filtered {
			t.Errorf("%s has counters of a filter", i.Name)
		}
	}
	h.daemon.stop()
}
