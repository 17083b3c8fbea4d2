package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// startWithFile starts the daemon with a configuration file, which edit replaces.
func (h *host) startWithFile(text string, args ...string) {
	h.tb.Helper()
	h.edit(text)
	control := filepath.Join(h.dir, "control.sock")
	h.daemon = launch(h.tb, h.Namespace, control, append([]string{"run", "--config", h.file(), "--control", control}, args...)...)
}

func (h *host) file() string { return filepath.Join(h.dir, "ipoibd.yaml") }

// edit replaces the file at once, as an editor does.
func (h *host) edit(text string) {
	h.tb.Helper()
	next := h.file() + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	if err := os.Rename(next, h.file()); err != nil {
		h.tb.Fatal(err)
	}
}

// reload runs "ipoibd reload". It returns the output, the errors and the exit code.
func (h *host) reload(args ...string) (out, errs string, code int) {
	h.tb.Helper()
	var stderr strings.Builder
	cmd := h.daemon.command(append([]string{"reload"}, args...)...)
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		h.tb.Fatal(err)
	}
	return string(text), stderr.String(), code
}

// reloads runs "ipoibd reload" and returns what was done with each device and interface that was
// not kept.
func (h *host) reloads() string {
	h.tb.Helper()
	out, errs, code := h.reload("--json")
	var done struct {
		Devices, Interfaces []struct {
			Name, Change, Error string
			Fields              []string
		}
	}
	if err := json.Unmarshal([]byte(out), &done); err != nil || code != 0 {
		h.tb.Fatalf("ipoibd reload: exit %d, %v\n%s%s\n%s", code, err, out, errs, h.daemon.log)
	}
	var parts []string
	for _, o := range append(done.Devices, done.Interfaces...) {
		if o.Change != "kept" {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", o.Name, o.Change, strings.Join(o.Fields, ","))))
		}
	}
	return strings.Join(parts, "; ")
}

// hangUp sends the daemon SIGHUP.
func (h *host) hangUp() {
	h.tb.Helper()
	if err := h.daemon.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		h.tb.Fatal(err)
	}
}

// named returns the status of an interface, or nil.
func (h *host) named(name string) *iface {
	h.tb.Helper()
	for _, f := range h.daemon.status().Interfaces {
		if f.Name == name {
			return &f
		}
	}
	return nil
}

// besides returns a file with ib0, which is always the same, and what is beside it.
func (h *host) besides(device, interfaces string) string {
	return fmt.Sprintf(`
devices:
  - name: soft
    underlay: %s
    %s
interfaces:
  - name: %s
    device: soft
    addresses: [%s/24, %s/64]
    up: true
%s`, nstest.Dev, device, ifName, h.ip4(), h.ip6(), interfaces)
}

// While TCP and numbered datagrams pass through ib0 both ways, ib1 is added, changed, rebuilt and
// removed, by "ipoibd reload" and by SIGHUP in turn, with its P_Key and a second device. ib0 loses no
// datagram, and its carrier, its addresses and its queue pair stay as they are.
func TestReloadUnderTraffic(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.Run("ip", "link", "add", otherDev, "type", "veth", "peer", "name", "far")
	a.Run("ip", "link", "set", "far", "up")
	a.Run("ip", "address", "add", "198.51.100.1/24", "dev", otherDev)
	a.Run("ip", "link", "set", otherDev, "up")

	const second = "pkeys: [0xffff, 0x8001]\n  - {name: second, underlay: " + otherDev + "}"
	steps := []struct {
		text, done string
		ok         func(f *iface) bool
	}{
		{
			a.besides("pkeys: [0x8001, 0xffff]", "  - {name: ib1, device: soft, pkey: 0x8001, up: true}"), "soft changed pkeys; ib1 added",
			func(f *iface) bool { return f != nil && f.State == "up" },
		},
		{
			a.besides("pkeys: [0x8001, 0xffff]", "  - {name: ib1, device: soft, pkey: 0x8001, up: true, mtu: 1300, addresses: [10.45.0.1/24]}"), "ib1 changed mtu,addresses",
			func(f *iface) bool { return f != nil && f.State == "up" && f.MTU == 1300 },
		},
		{
			a.besides(second, "  - {name: ib1, device: second, up: true}"), "soft changed pkeys; second added; ib1 rebuilt device,pkey,mtu,addresses",
			func(f *iface) bool { return f != nil && f.State == "up" && f.QP.GID == "198.51.100.1" },
		},
		{
			a.besides(second[:len(second)-1]+", lanes: 2}", "  - {name: ib1, device: second, up: true}"), "second rebuilt lanes; ib1 rebuilt device",
			func(f *iface) bool { return f != nil && f.State == "up" && f.Lanes == 2 },
		},
		{a.besides("pkeys: [0xffff]", ""), "soft changed pkeys; second removed; ib1 removed", func(f *iface) bool { return f == nil }},
	}
	a.startWithFile(steps[len(steps)-2].text) // with all privileges that a step needs
	b.join()
	a.edit(steps[len(steps)-1].text)
	if done, want := a.reloads(), steps[len(steps)-1].done; done != want {
		t.Errorf("the first reload: %q, want %q", done, want)
	}
	a.waitCarrier()
	pingAll(a, b)
	// Nothing else may make the peers change.
	monitor, stream, changes, qp := a.monitor(), a.stream(b), a.carrierChanges(), a.qp()
	var enough atomic.Bool // reloads
	flows := []*flow{{from: a, to: b, addr: b.ip4(), enough: enough.Load}, {from: b, to: a, addr: a.ip4(), enough: enough.Load}}
	sizes := slices.Repeat([]int{400}, form(40_000, 800_000))
	var sending sync.WaitGroup
	for _, f := range flows {
		sending.Go(func() {
			if err := f.run(sizes); err != nil {
				t.Error(err)
			}
		})
	}
	reloads := 0
	for !flows[0].ended.Load() || reloads%len(steps) != 0 {
		s := steps[reloads%len(steps)]
		a.edit(s.text)
		if reloads++; reloads%2 == 0 {
			a.hangUp()
		} else if done := a.reloads(); done != s.done {
			t.Errorf("reload %d: %q, want %q", reloads, done, s.done)
		}
		eventually(t, repairLimit, "reload has taken effect: "+s.done, func() bool { return s.ok(a.named("ib1")) })
		enough.Store(reloads >= 2*len(steps)) // each step both ways
	}
	enough.Store(true) // also if a flow has failed
	sending.Wait()
	t.Logf("%d reloads, of which %d by SIGHUP", reloads, reloads/2)
	for _, f := range flows {
		lost := 0
		for number := range uint64(f.sent) {
			if f.got[number] == 0 {
				lost++
			}
		}
		t.Logf("host %d to host %d: %d datagrams, %d lost", f.from.number, f.to.number, f.sent, lost)
		if lost > 0 {
			t.Errorf("%d datagrams lost\n%s\n%s", lost, a.describe(), b.describe())
		}
	}
	monitor.requireKept(t)
	if now := a.carrierChanges(); now != changes {
		t.Errorf("the carrier of %s has changed %d times", ifName, now-changes)
	}
	if now := a.qp(); now != qp {
		t.Errorf("queue pair %+v, was %+v", now, qp)
	}
	if took, err := stream.waitMoves(streamLimit); err != nil {
		t.Errorf("after %v: %v", took, err)
	}
	if out := a.Run("ip", "-o", "link"); strings.Contains(out, "ib1") {
		t.Errorf("ib1 is still there:\n%s", out)
	}
}

// A file with mistakes, or none, changes nothing: "ipoibd reload" prints all mistakes with their lines
// and exits with 2, and SIGHUP logs them. The flags of the start apply again.
func TestReloadOfBrokenFiles(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	good := h.besides("grace: 30s", "    mtu: 1300\n")
	h.startWithFile(good, "--mtu", "1400")
	h.waitCarrier()
	mtu := func() string { return strings.Fields(h.Run("ip", "-o", "link", "show", ifName))[4] }
	eventually(t, repairLimit, "the flag's MTU", func() bool { return mtu() == "1400" })
	before := h.qp()
	for name, c := range map[string]struct {
		text  string
		wants []string
	}{
		"not YAML":       {"devices: [", []string{h.file() + ":2: did not find expected node content"}},
		"unknown fields": {"devices:\n- {underlay: x, lane: 2}\ninterfaces:\n- nam: ib0\n", []string{":2: devices[0].lane: unknown field; did you mean lanes?", ":4: interfaces[0].nam: unknown field; did you mean name?"}},
		"wrong values":   {"devices:\n- lanes: 3\ninterfaces:\n- {name: ib0, addresses: [10.0.0.0/8]}\n", []string{":2: devices[0].lanes: 3 is not 1, 2, 4 or 8", ":4: interfaces[0].addresses[0]: 10.0.0.0/8 is the first"}},
		"empty":          {"", []string{"the file is empty"}},
		"two interfaces": {h.besides("", "  - {name: ib1, device: soft}"), []string{"--mtu: " + h.file() + " configures several devices or interfaces; set it there"}},
	} {
		h.edit(c.text)
		out, errs, code := h.reload()
		for _, want := range c.wants {
			if code != 2 || out != "" || !strings.Contains(errs, want) {
				t.Errorf("%s: exit %d, %q, %q; want %q", name, code, out, errs, want)
			}
		}
		h.hangUp()
		eventually(t, repairLimit, name+": the log has the mistakes", func() bool {
			return !slices.ContainsFunc(c.wants, func(want string) bool {
				return !strings.Contains(strings.ReplaceAll(h.daemon.log.String(), `\"`, `"`), want)
			})
		})
	}
	if err := os.Remove(h.file()); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := h.reload(); code != 2 || !strings.Contains(errs, h.file()+": no such file") {
		t.Errorf("missing: exit %d, %q", code, errs)
	}
	if err := os.Mkdir(h.file(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := h.reload(); code != 2 || !strings.Contains(errs, h.file()+": is a directory") {
		t.Errorf("a directory: exit %d, %q", code, errs)
	}
	if err := os.Remove(h.file()); err != nil {
		t.Fatal(err)
	}
	if now := h.qp(); now != before || mtu() != "1400" {
		t.Errorf("queue pair %+v, was %+v; MTU %s", now, before, mtu())
	}
	h.edit(strings.Replace(good, "mtu: 1300", "mtu: 1280", 1))
	if done := h.reloads(); done != "" {
		t.Errorf("%s, although --mtu sets it", done)
	}
	h.daemon.stop()

	h.start()
	if _, errs, code := h.reload(); code != 1 || !strings.Contains(errs, "without a configuration file") {
		t.Errorf("without a file: exit %d, %q", code, errs)
	}
	h.hangUp()
	eventually(t, repairLimit, "the log says that there is no file", func() bool { return strings.Contains(h.daemon.log.String(), "without a configuration file") })
	h.daemon.stop()
}

// A hundred "ipoibd reload" at once, and as many SIGHUPs, while the file changes: the daemon stays,
// ib0 is not touched, and the last reload leads to the file.
func TestReloadStormFromOutside(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	alone, two := h.besides("", ""), h.besides("", "  - {name: ib1, device: soft, up: true}")
	h.startWithFile(alone)
	h.waitCarrier()
	before, changes := h.qp(), h.carrierChanges()
	var all sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range 100 {
		h.edit([]string{alone, two}[i%2])
		all.Go(func() {
			_, errs, code := h.reload()
			mu.Lock()
			defer mu.Unlock()
			if codes[code]++; code != 0 && !strings.Contains(errs, "too many orders") {
				t.Errorf("exit %d: %s", code, errs)
			}
		})
		h.hangUp()
	}
	all.Wait()
	t.Logf("exit codes %v", codes)
	h.edit(alone)
	h.reloads()
	if now := h.qp(); now != before || h.carrierChanges() != changes {
		t.Errorf("queue pair %+v, was %+v; %d changes of the carrier", now, before, h.carrierChanges()-changes)
	}
	if got := h.daemon.status(); len(got.Interfaces) != 1 || h.reloads() != "" {
		t.Errorf("%d interfaces", len(got.Interfaces))
	}
	h.daemon.stop()
}
