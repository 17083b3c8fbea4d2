package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// file is a configuration file in memory.
type file struct {
	mu  sync.Mutex
	cfg config.Config
}

// edit changes the file.
func (f *file) edit(change func(*config.Config)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg = *copied(&f.cfg)
	change(&f.cfg)
}

func (f *file) load() (*config.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cfg := copied(&f.cfg)
	return cfg, cfg.Validate()
}

// copied returns a copy with lists of its own.
func copied(c *config.Config) *config.Config {
	return &config.Config{Control: c.Control, Devices: slices.Clone(c.Devices), Interfaces: slices.Clone(c.Interfaces)}
}

// reloading is a daemon with a file.
type reloading struct {
	*running
	file *file
}

// startFile runs a daemon with interfaces that are up.
func startFile(t *testing.T, change func(*config.Config, *Options), names ...string) reloading {
	t.Helper()
	cfg, opts := configure(t, names...), options()
	for i := range cfg.Interfaces {
		cfg.Interfaces[i].Up = true
	}
	if change != nil {
		change(cfg, &opts)
	}
	f := &file{cfg: *cfg}
	opts.Load, opts.AllowFaults = f.load, true
	r := reloading{start(t, cfg, opts), f}
	for _, i := range cfg.Interfaces {
		r.up(i.Name)
	}
	return r
}

// edit changes the file and reloads it. It returns what was done, and the status 422 or another one.
func (r reloading) edit(change func(*config.Config)) (string, error) {
	r.t.Helper()
	r.file.edit(change)
	var q control.ReloadRequest
	err := control.Post(r.t.Context(), r.cfg.Control, &q)
	return changesOf(q.Reload), err
}

// changesOf writes on one line what was not kept.
func changesOf(r report.Reload) string {
	var parts []string
	for _, o := range append(r.Devices, r.Interfaces...) {
		if o.Change != "kept" {
			parts = append(parts, o.Name+" "+o.String())
		}
	}
	return strings.Join(parts, "; ")
}

// wants edits the file, and requires an outcome.
func (r reloading) wants(want string, change func(*config.Config)) {
	r.t.Helper()
	if got, err := r.edit(change); err != nil || got != want {
		r.t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func (r reloading) status() *report.Status {
	r.t.Helper()
	s, err := control.GetStatus(r.t.Context(), r.cfg.Control)
	must(r.t, err)
	return s
}

// named returns the status of an interface, or nil.
func (r reloading) named(name string) *report.Interface {
	r.t.Helper()
	s := r.status()
	for i := range s.Interfaces {
		if s.Interfaces[i].Name == name {
			return &s.Interfaces[i]
		}
	}
	return nil
}

func (r reloading) up(name string) report.Interface {
	r.t.Helper()
	var f *report.Interface
	r.eventually(name+" is up", func() bool {
		f = r.named(name)
		return f != nil && f.State == report.InterfaceUp && f.Carrier
	})
	return *f
}

func addrsOf(t *testing.T, name string) (out []string) {
	t.Helper()
	list, err := netlink.AddrList(find(t, name), netlink.FAMILY_V4)
	must(t, err)
	for _, a := range list {
		out = append(out, a.IPNet.String())
	}
	return out
}

// One reload keeps, changes, rebuilds, adds and removes interfaces. What is kept keeps its queue
// pair, what is rebuilt its interface and the operator's address; what is removed is deleted.
func TestReloadOfInterfaces(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0", "ib1", "ib2", "ib3")
	kept, changed, rebuilt := r.up("ib0"), r.up("ib1"), r.up("ib2")
	index := find(t, "ib2").Attrs().Index
	must(t, netlink.AddrAdd(find(t, "ib2"), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 7, 0, 1), Mask: net.CIDRMask(24, 32)}}))
	r.wants("ib1 changed (mtu, addresses); ib2 rebuilt (pkey, addresses); ib4 added; ib3 removed", func(c *config.Config) {
		c.Interfaces[1].MTU, c.Interfaces[1].Addresses = 1300, []string{"10.9.0.1/24"}
		c.Interfaces[2].PKey, c.Interfaces[2].Addresses = 0x8001, []string{"10.8.0.1/24"}
		c.Interfaces[3].Name = "ib4"
	})
	if got := addrsOf(t, "ib1"); !reflect.DeepEqual(got, []string{"10.9.0.1/24"}) {
		t.Errorf("addresses of ib1 right after the reload: %v", got)
	}
	if exists("ib3") {
		t.Error("ib3 is still there")
	}
	if now := r.up("ib0"); !reflect.DeepEqual(now.QP, kept.QP) || !now.Since.Equal(kept.Since) {
		t.Errorf("ib0 was touched: %+v, was %+v", now.QP, kept.QP)
	}
	if now, mtu := r.up("ib1"), find(t, "ib1").Attrs().MTU; !reflect.DeepEqual(now.QP, changed.QP) || mtu != 1300 {
		t.Errorf("ib1 has MTU %d and %+v, was %+v", mtu, now.QP, changed.QP)
	}
	if now := r.up("ib2"); now.QP.PKey != 0x8001 || now.MTU != rebuilt.MTU || find(t, "ib2").Attrs().Index != index {
		t.Errorf("ib2: %+v, MTU %d, was %d", now.QP, now.MTU, rebuilt.MTU)
	}
	r.eventually("addresses of ib2", func() bool {
		return reflect.DeepEqual(addrsOf(t, "ib2"), []string{"10.7.0.1/24", "10.8.0.1/24"})
	})
	r.up("ib4")
	r.wants("", func(*config.Config) {})
	r.wants("ib1 changed (mtu, addresses)", func(c *config.Config) { c.Interfaces[1].MTU, c.Interfaces[1].Addresses = 0, nil })
	if mtu := find(t, "ib1").Attrs().MTU; mtu != changed.MTU || len(addrsOf(t, "ib1")) != 0 {
		t.Errorf("ib1 has MTU %d and %v", mtu, addrsOf(t, "ib1"))
	}
	r.stop()
	for _, name := range []string{"ib0", "ib1", "ib2", "ib4"} {
		if !exists(name) {
			t.Errorf("%s is gone after the stop", name)
		}
	}
}

// A reload changes, rebuilds, adds and removes devices. P_Keys and peers change while the device is
// open; anything else opens another one, for its own interfaces alone.
func TestReloadOfDevices(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	underlay(t, "under1", 2)
	underlay(t, "under2", 3)
	second := config.NewDevice()
	second.Name, second.Underlay, second.Peers = "second", "under1", []string{"192.0.2.7"}
	r := startFile(t, func(c *config.Config, _ *Options) {
		c.Devices = append(c.Devices, second)
		c.Interfaces[1].Device = "second"
	}, "ib0", "ib1")
	kept, other := r.up("ib0"), r.up("ib1")
	r.wants("soft changed (pkeys); second changed (peers)", func(c *config.Config) {
		c.Devices[0].PKeys = []hca.PKey{0x8002, 0xffff}
		c.Devices[1].Peers = []string{"192.0.2.8", "192.0.2.9"}
	})
	r.eventually("the P_Key is there", func() bool { return len(r.status().Devices[0].Ports[0].PKeys) == 2 })
	s := r.status()
	if got := fmt.Sprint(s.Devices[1].Peers); got != "[192.0.2.8 192.0.2.9]" {
		t.Errorf("peers %s", got)
	}
	r.wants("ib2 added", func(c *config.Config) {
		f := c.Interfaces[0]
		f.Name, f.PKey = "ib2", 0x8002
		c.Interfaces = append(c.Interfaces, f)
	})
	if f := r.up("ib2"); f.QP.PKey != 0x8002 {
		t.Errorf("ib2: %+v", f.QP)
	}
	untouched := func(when string) {
		t.Helper()
		if now := r.up("ib0"); !reflect.DeepEqual(now.QP, kept.QP) {
			t.Errorf("%s: ib0 was touched: %+v, was %+v", when, now.QP, kept.QP)
		}
	}
	untouched("pkeys")
	if now := r.up("ib1"); !reflect.DeepEqual(now.QP, other.QP) {
		t.Errorf("ib1 was touched: %+v, was %+v", now.QP, other.QP)
	}
	r.wants("second rebuilt (peers, lanes); ib1 rebuilt (device)", func(c *config.Config) { c.Devices[1].Peers, c.Devices[1].Lanes = nil, 2 })
	if now := r.up("ib1"); now.Lanes != 2 {
		t.Errorf("ib1 has %d lanes", now.Lanes)
	}
	r.wants("second rebuilt (underlay); ib1 rebuilt (device)", func(c *config.Config) { c.Devices[1].Underlay = "under2" })
	if now := r.up("ib1"); now.QP.GID.String() != "192.0.2.3" {
		t.Errorf("ib1: %+v", now.QP)
	}
	r.wants("third added; second removed; ib1 rebuilt (device)", func(c *config.Config) {
		c.Devices[1].Name, c.Interfaces[1].Device = "third", "third"
	})
	r.up("ib1")
	r.wants("third removed; ib1 removed", func(c *config.Config) {
		c.Devices, c.Interfaces = c.Devices[:1], slices.Delete(c.Interfaces, 1, 2)
	})
	untouched("the end")
	if s := r.status(); len(s.Devices) != 1 || len(s.Interfaces) != 2 || exists("ib1") {
		t.Errorf("%d devices, %d interfaces, ib1 exists: %t", len(s.Devices), len(s.Interfaces), exists("ib1"))
	}
	r.stop()
}

// A reload that is refused changes nothing, and leaves nothing behind.
func TestRefusedReloadChangesNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "taken"}}))
	start(t, configure(t, "ib0"), options()).stop()
	before := use()
	r := startFile(t, nil, "ib0", "ib1")
	first := []report.Interface{r.up("ib0"), r.up("ib1")}
	original := copied(&r.file.cfg)
	add := func(c *config.Config, name string) {
		f := config.NewInterface()
		f.Name = name
		c.Interfaces = append(c.Interfaces, f)
	}
	for name, c := range map[string]struct {
		change  func(*config.Config)
		want    string
		mistake bool
	}{
		"mistakes": {func(c *config.Config) { c.Interfaces[0].MTU = 7 }, "interfaces[0].mtu: 7 is out of range (68 to 4092)", true},
		"control":  {func(c *config.Config) { c.Control = "/run/x.sock" }, "restart the daemon", true},
		"empty":    {func(c *config.Config) { c.Interfaces = nil }, "interfaces: none configured; add one, or set lend", true},
		"name taken, after another one was added": {func(c *config.Config) {
			c.Interfaces = c.Interfaces[1:]
			add(c, "new")
			add(c, "taken")
		}, "interface taken: ", false},
		"no netdev": {func(c *config.Config) {
			d := config.NewDevice()
			d.Name, d.Underlay = "d", "nowhere"
			c.Devices = append(c.Devices, d)
		}, "device d: ", false},
		"rebuilt on no netdev": {func(c *config.Config) {
			c.Devices[0].Underlay = "nowhere"
		}, "device soft: ", false},
		"loopback": {func(c *config.Config) {
			c.Devices[0].Underlay = "lo"
		}, "loopback", false},
	} {
		done, err := r.edit(c.change)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, control.ErrMistake) != c.mistake {
			t.Errorf("%s: %s, %v, a mistake: %t", name, done, err, errors.Is(err, control.ErrMistake))
		}
		r.file.edit(func(now *config.Config) { *now = *copied(original) })
	}
	for i, name := range []string{"ib0", "ib1"} {
		if now := r.up(name); !reflect.DeepEqual(now.QP, first[i].QP) {
			t.Errorf("%s was touched: %+v, was %+v", name, now.QP, first[i].QP)
		}
	}
	if exists("new") {
		t.Error("the new interface is left behind")
	}
	r.wants("", func(*config.Config) {})
	r.stop()
	before.check(t)
}

// Without a file there is nothing to reload.
func TestReloadWithoutFile(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := start(t, configure(t, "ib0"), options())
	err := control.Post(t.Context(), r.cfg.Control, &control.ReloadRequest{})
	if err == nil || !strings.Contains(err.Error(), "without a configuration file") || errors.Is(err, control.ErrMistake) {
		t.Errorf("error %v", err)
	}
	r.stop()
}

// An interface that is in a container stays there, under its name there, while it is rebuilt. More
// lanes would need another interface, so they are refused.
func TestReloadOfMovedInterface(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0")
	container := nstest.New(t)
	move(t, "ib0", container)
	container.Run("ip", "link", "set", "ib0", "name", "fabric", "up")
	r.up("ib0")
	r.wants("soft rebuilt (standard_mtu); ib0 rebuilt (device)", func(c *config.Config) { c.Devices[0].StandardMTU = true })
	r.up("ib0")
	if out := container.Run("ip", "-o", "link", "show", "fabric"); !strings.Contains(out, "LOWER_UP") || !strings.Contains(out, "mtu 1020 ") {
		t.Errorf("in the container: %s", out)
	}
	if done, err := r.edit(func(c *config.Config) { c.Devices[0].Lanes = 2 }); err == nil || !strings.Contains(err.Error(), "lanes cannot change") {
		t.Errorf("%s, %v", done, err)
	}
	if exists("ib0") {
		t.Error("there is another ib0")
	}
	r.stop()
}

// An interface that would have to be opened again stays as it is if another one has its new name, its new network
// namespace does not exist, or its own name no longer belongs to ipoibd because the host has chosen another alias.
func TestReloadToANameThatIsTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0")
	must(t, netlink.LinkSetUp(find(t, "ib0")))
	r.up("ib0")
	refused := func(want error, change func(*config.Interface, *config.Device)) {
		t.Helper()
		done, err := r.edit(func(c *config.Config) { change(&c.Interfaces[0], &c.Devices[0]) })
		if err == nil || !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("%s, %v; want %v", done, err, want)
		}
		r.up("ib0")
	}
	refused(link.ErrNameTaken, func(i *config.Interface, _ *config.Device) { i.Netdev = "under0-peer" })
	refused(link.ErrNoNamespace, func(i *config.Interface, _ *config.Device) { i.Netdev, i.Netns = "", t.TempDir()+"/typo" })
	must(t, netlink.LinkSetAlias(find(t, "ib0"), "uplink"))
	refused(link.ErrNameTaken, func(i *config.Interface, d *config.Device) { i.Netns, d.Lanes = "", 2 })
	r.stop()
}

// Two interfaces cannot swap the names of their netdevs in one reload, because each name is in use until the other
// interface has left it. The reload is refused, and both continue. By way of a third name they can.
func TestReloadSwapsNames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0", "ib1")
	must(t, netlink.LinkSetUp(find(t, "ib0")))
	must(t, netlink.LinkSetUp(find(t, "ib1")))
	netdevs := func(first, second string) (string, error) {
		done, err := r.edit(func(c *config.Config) { c.Interfaces[0].Netdev, c.Interfaces[1].Netdev = first, second })
		for _, name := range []string{"ib0", "ib1"} {
			r.up(name)
		}
		return done, err
	}
	if done, err := netdevs("ib1", "ib0"); err == nil || !strings.Contains(err.Error(), "to swap two names") {
		t.Errorf("swapped: %s, %v", done, err)
	}
	for _, names := range [][2]string{{"ib2", "ib1"}, {"ib2", "ib0"}, {"ib1", "ib0"}} {
		if done, err := netdevs(names[0], names[1]); err != nil {
			t.Errorf("to %s and %s: %s, %v", names[0], names[1], done, err)
		}
		if !exists(names[0]) || !exists(names[1]) {
			t.Errorf("%s is there: %t, %s: %t", names[0], exists(names[0]), names[1], exists(names[1]))
		}
	}
	r.stop()
}

// A rebuilt interface stays down if the operator has set it down, and keeps the operator's MTU; the
// largest MTU follows the port. eBPF programs come and go. Counters do not decrease.
func TestRebuiltInterfaceKeepsTheOperatorsSettings(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0", "ib1", "ib2")
	must(t, netlink.LinkSetDown(find(t, "ib0")))
	must(t, netlink.LinkSetMTU(find(t, "ib1"), 900))
	r.eventually("the daemon knows", func() bool { return r.named("ib0").State == report.InterfaceDown && r.named("ib1").MTU == 900 })
	const frames = 50 // sent at once
	filters := func(name string) bool {
		was := r.named(name)
		sendLLC(t, name, frames)
		byFilter := uint64(0)
		r.eventually("frames that IPoIB cannot carry are dropped", func() bool {
			f := r.named(name)
			byFilter = f.Kernel["tap_drop_filter_llc"].Value - was.Kernel["tap_drop_filter_llc"].Value
			return byFilter+f.Counters["tx_drop_ethertype"].Value-was.Counters["tx_drop_ethertype"].Value >= frames
		})
		return byFilter >= frames
	}
	r.up("ib1")
	r.up("ib2")
	programs := filters("ib1") // false without CAP_BPF
	for _, std := range []bool{true, false, true} {
		before := []*report.Interface{r.named("ib1"), r.named("ib2")}
		r.wants("soft rebuilt (standard_mtu); ib0 rebuilt (device); ib1 rebuilt (device); ib2 rebuilt (ebpf, device)", func(c *config.Config) {
			c.Devices[0].StandardMTU, c.Interfaces[2].EBPF = std, !std
		})
		want := map[bool]int{true: 1020, false: 1444}[std]
		r.up("ib1")
		r.up("ib2")
		if a, b := find(t, "ib1").Attrs().MTU, find(t, "ib2").Attrs().MTU; a != 900 || b != want {
			t.Errorf("MTU %d and %d, want 900 and %d", a, b, want)
		}
		r.eventually("ib0 is down", func() bool { return r.named("ib0").State == report.InterfaceDown })
		for _, was := range before {
			now := r.named(was.Name)
			for _, name := range decreased(was.Kernel, now.Kernel) {
				t.Errorf("%s, rebuilt: %s from %d to %d", was.Name, name, was.Kernel[name].Value, now.Kernel[name].Value)
			}
			for _, name := range decreased(was.Counters, now.Counters) {
				t.Errorf("%s, rebuilt: %s from %d to %d", was.Name, name, was.Counters[name].Value, now.Counters[name].Value)
			}
			if n := now.Kernel["kernel_tx_dropped"].Value - was.Kernel["kernel_tx_dropped"].Value; n >= frames {
				t.Errorf("%s, rebuilt: the kernel has dropped %d frames", was.Name, n)
			}
		}
		if a, b := filters("ib1"), filters("ib2"); a != programs || b != (programs && !std) {
			t.Errorf("filters: %v and %v", a, b)
		}
	}
	r.stop()
}

// gauges are the gauges of an interface. Counters that were read from the control socket have no kinds.
var gauges = []string{"tx_outstanding", "rx_outstanding", "tx_queued", "neigh_kept"}

// decreased returns the counters, other than gauges, that are below their earlier values.
func decreased(was, now report.Counters) (names []string) {
	for name, n := range was {
		if !slices.Contains(gauges, name) && now[name].Value < n.Value {
			names = append(names, name)
		}
	}
	return names
}

// sendLLC sends frames of IEEE 802.2, which IPoIB cannot carry, to a netdev.
func sendLLC(t *testing.T, name string, frames int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	frame := append([]byte{1, 0x80, 0xc2, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 38, 0x42, 0x42, 3}, make([]byte, 43)...)
	for range frames {
		must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: find(t, name).Attrs().Index}))
	}
}

// A device that is added or rebuilt while all are suspended begins suspended.
func TestReloadWhileSuspended(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	underlay(t, "under1", 2)
	r := startFile(t, nil, "ib0", "ib1")
	must(t, control.Post(t.Context(), r.cfg.Control, &control.SuspendRequest{}))
	r.wants("soft rebuilt (standard_mtu); second added; ib0 rebuilt (device); ib1 rebuilt (device)", func(c *config.Config) {
		d := c.Devices[0]
		d.Name, d.Underlay = "second", "under1"
		c.Devices[0].StandardMTU = true
		c.Devices = append(c.Devices, d)
		c.Interfaces[1].Device = "second"
	})
	time.Sleep(200 * time.Millisecond)
	for _, d := range r.status().Devices {
		if d.State != "suspended" || d.Opens != 0 {
			t.Errorf("%s is %s, opened %d times", d.Name, d.State, d.Opens)
		}
	}
	r.wants("ib0 removed", func(c *config.Config) { c.Interfaces = c.Interfaces[1:] })
	must(t, control.Post(t.Context(), r.cfg.Control, &control.ResumeRequest{}))
	r.up("ib1")
	r.stop()
}

// While verbs of a device hang, or it is being reset, a reload is bounded and leads to the same.
// Another device does not notice.
func TestReloadDuringFaults(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	underlay(t, "under1", 2)
	start(t, configure(t, "ib0"), options()).stop()
	before := use()
	reloadDuring(t, []control.FaultRequest{
		{Kind: "verb_hangs"},
		{Kind: "verb_hangs", Verb: "modify_qp"},
		{Kind: "device_fatal"},
		{Kind: "swallowed_send"},
		{Kind: "cq_error"},
		{Kind: "unplug"},
		{Kind: "client_dead"},
		{Kind: "port_down"},
	})
	before.check(t)
	reloadDuring(t, []control.FaultRequest{{Kind: "verb_hangs_forever", Verb: "destroy_qp"}}) // whose goroutines stay
}

func reloadDuring(t *testing.T, faults []control.FaultRequest) {
	t.Helper()
	r := startFile(t, func(c *config.Config, _ *Options) {
		second := c.Devices[0]
		second.Name, second.Underlay = "second", "under1"
		c.Devices = append(c.Devices, second)
		c.Interfaces[2].Device = "second"
	}, "ib0", "ib1", "ib2")
	apart := r.up("ib2")
	for _, f := range faults {
		f.Device = "soft"
		must(t, control.Post(t.Context(), r.cfg.Control, &f))
		begin := time.Now()
		r.wants("ib3 added; ib1 removed", func(c *config.Config) { c.Interfaces[1].Name = "ib3" })
		r.wants("soft rebuilt (standard_mtu); ib0 rebuilt (device); ib3 rebuilt (device)", func(c *config.Config) {
			c.Devices[0].StandardMTU = !c.Devices[0].StandardMTU
		})
		took := time.Since(begin)
		t.Logf("%s %s: two reloads in %v", f.Kind, f.Verb, took.Round(time.Millisecond))
		if took > 2*fleet.ChangeLimit {
			t.Errorf("took %v", took)
		}
		r.wants("ib1 added; ib3 removed", func(c *config.Config) { c.Interfaces[1].Name = "ib1" })
		r.up("ib0")
		r.up("ib1")
	}
	if now := r.up("ib2"); !reflect.DeepEqual(now.QP, apart.QP) {
		t.Errorf("ib2 was touched: %+v, was %+v", now.QP, apart.QP)
	}
	r.stop()
}

// A failed interface comes back with a reload. When the last one has failed, the daemon ends.
func TestReloadBringsFailedInterfacesBack(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0", "ib1")
	lose := func(name string) {
		t.Helper()
		must(t, netlink.LinkDel(find(t, name)))
		r.eventually(name+" has failed", func() bool { return r.named(name).State == report.InterfaceFailed })
	}
	lose("ib0")
	r.wants("ib0 added", func(*config.Config) {})
	r.up("ib0")
	lose("ib1")
	r.wants("", func(c *config.Config) { c.Interfaces = c.Interfaces[:1] })
	if r.named("ib1") != nil {
		t.Error("ib1 is still shown")
	}
	must(t, netlink.LinkDel(find(t, "ib0")))
	if err := r.wait(); !errors.Is(err, iface.ErrDeleted) {
		t.Errorf("ended with %v", err)
	}
}

// A hundred reloads at once, of a file that changes meanwhile, and SIGHUPs: all are carried out or
// refused because there are too many, in the end the daemon is as in the file, and nothing is lost.
func TestReloadStorm(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	start(t, configure(t, "ib0"), options()).stop()
	before, hangups := use(), make(chan os.Signal, 1)
	r := startFile(t, func(_ *config.Config, o *Options) { o.Hangup = hangups }, "ib0", "ib1")
	kept := r.up("ib0")
	original := copied(&r.file.cfg)
	var all sync.WaitGroup
	var mu sync.Mutex
	results := map[string]int{}
	for i := range 100 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			_, err := r.edit(func(c *config.Config) {
				*c = *copied(original)
				switch random.IntN(4) {
				case 0:
					c.Interfaces[1].Name = "ib2"
				case 1:
					c.Interfaces[1].PKey = 0x8001
				case 2:
					c.Interfaces[1].MTU = 1300
				}
			})
			text := fmt.Sprint(err)
			if err != nil && !strings.Contains(text, "too many orders") {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[text]++
			select {
			case hangups <- os.Interrupt:
			default:
			}
		})
	}
	all.Wait()
	t.Logf("%v", results)
	if results["<nil>"] == 0 {
		t.Error("none was carried out")
	}
	r.eventually("the end is as in the file", func() bool {
		_, err := r.edit(func(c *config.Config) { *c = *copied(original) })
		return err == nil
	})
	r.up("ib1")
	if now := r.up("ib0"); !reflect.DeepEqual(now.QP, kept.QP) {
		t.Errorf("ib0 was touched: %+v, was %+v", now.QP, kept.QP)
	}
	if len(r.status().Interfaces) != 2 || exists("ib2") {
		t.Errorf("%d interfaces, ib2 exists: %t", len(r.status().Interfaces), exists("ib2"))
	}
	r.stop()
	before.check(t)
}

// A stop at any moment of a reload is as quick as any other stop, and loses nothing.
func TestStopDuringReload(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	startFile(t, nil, "ib0", "ib1").stop()
	before := use()
	for i := range 30 {
		r := startFile(t, nil, "ib0", "ib1")
		r.file.edit(func(c *config.Config) {
			c.Devices[0].StandardMTU = true
			c.Interfaces[1].Name = "ib2"
		})
		reloaded := make(chan error, 1)
		go func() { reloaded <- control.Post(context.Background(), r.cfg.Control, &control.ReloadRequest{}) }()
		time.Sleep(time.Duration(i) * time.Millisecond)
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took > stopLimit {
			t.Errorf("stopped after %v", took)
		}
		if err := <-reloaded; err != nil {
			t.Logf("stopped %d ms after the request: %v", i, err)
		}
		if exists("ib2") { // it was added
			must(t, link.Delete("ib2"))
		}
	}
	before.check(t)
}

// A file system that hangs holds up neither a request for longer than its context, nor a stop.
func TestReloadOfAFileThatHangs(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg, opts := configure(t, "ib0"), options()
	hang := make(chan struct{})
	opts.Load = func() (*config.Config, error) { <-hang; return nil, errors.New("late") }
	r := start(t, cfg, opts)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := control.Post(ctx, cfg.Control, &control.ReloadRequest{}); err == nil {
			t.Error("no error")
		}
		cancel()
	}
	begin := time.Now()
	r.stop()
	if took := time.Since(begin); took > stopLimit {
		t.Errorf("stopped after %v", took)
	}
	close(hang)
}

// An interface that was added at run time works beside those of the file. A reload keeps it, until the
// file contains it too. Requests can change and remove it, but not the interfaces of the file. After a
// restart, the daemon takes it back, unless it no longer exists.
func TestInterfacesAtRunTime(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := startFile(t, nil, "ib0")
	kept := r.up("ib0")
	post := func(q control.Request, result *report.Reload) (string, error) {
		err := control.Post(t.Context(), r.cfg.Control, q)
		if add, ok := q.(*control.AddRequest); ok && err == nil {
			must(t, json.Unmarshal(add.RawMessage, result))
		}
		return changesOf(*result), err
	}
	add := func(definition, want string) {
		t.Helper()
		var done report.Reload
		if got, err := post(&control.AddRequest{RawMessage: json.RawMessage(definition)}, &done); err != nil || got != want {
			t.Errorf("add %s: %q, %v; want %q", definition, got, err, want)
		}
	}
	remove := func(name string) (string, error) {
		q := control.RemoveRequest{Interface: name}
		return post(&q, &q.Reload)
	}
	const pod = `{"name": "pod1", "pkey": "0x8001", "up": true}`
	add(pod, "pod1 added")
	if f := r.up("pod1"); !f.Runtime || f.QP.PKey != 0x8001 || r.named("ib0").Runtime {
		t.Errorf("%+v", f)
	}
	add(pod, "")
	add(`{"name": "pod1", "pkey": "0x8001", "up": true, "mtu": 1300}`, "pod1 changed (mtu)")
	r.wants("ib1 added", func(c *config.Config) {
		f := c.Interfaces[0]
		f.Name = "ib1"
		c.Interfaces = append(c.Interfaces, f)
	})
	r.up("pod1")
	if done, err := r.edit(func(c *config.Config) { c.Devices[0].PKeys = []hca.PKey{0xffff} }); err == nil || !errors.Is(err, control.ErrMistake) || !strings.Contains(err.Error(), "interface pod1 (added at run time).pkey: ") {
		t.Errorf("its P_Key is gone: %s, %v", done, err)
	}
	r.wants("", func(c *config.Config) { c.Devices[0].PKeys = []hca.PKey{0xffff, 0x8001} })
	for _, definition := range []string{`{"name": "ib0"}`, `{"name": "pod2", "mtuu": 7}`, `{}`, `[1]`} {
		if err := control.Post(t.Context(), r.cfg.Control, &control.AddRequest{RawMessage: json.RawMessage(definition)}); !errors.Is(err, control.ErrMistake) {
			t.Errorf("add %s: %v", definition, err)
		}
	}
	if _, err := remove("ib0"); !errors.Is(err, control.ErrMistake) {
		t.Errorf("remove ib0: %v", err)
	}
	if _, err := remove("nothing"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("remove nothing: %v", err)
	}
	if done, err := remove("pod1"); err != nil || done != "pod1 removed" || exists("pod1") {
		t.Errorf("%q, %v; it exists: %t", done, err, exists("pod1"))
	}
	add(pod, "pod1 added")
	r.wants("", func(c *config.Config) {
		f := c.Interfaces[0]
		f.Name, f.PKey = "pod1", 0x8001
		c.Interfaces = append(c.Interfaces, f)
	})
	if r.named("pod1").Runtime {
		t.Error("pod1 is in the file now")
	}
	r.wants("pod1 removed", func(c *config.Config) { c.Interfaces = c.Interfaces[:2] })
	add(pod, "pod1 added")
	if now := r.up("ib0"); !reflect.DeepEqual(now.QP, kept.QP) {
		t.Errorf("ib0 was touched: %+v, was %+v", now.QP, kept.QP)
	}
	r.stop()
	if !exists("pod1") {
		t.Error("pod1 is gone after the stop")
	}
	r.running = start(t, r.cfg, options())
	if f := r.up("pod1"); !f.Adopted || !f.Runtime {
		t.Errorf("%+v", f)
	}
	add(pod, "")
	r.stop()

	// One that cannot be taken back is not forgotten: a later start takes it back, unless it is removed.
	refusing := options()
	refusing.Admit = func(next *config.Config) error {
		if len(next.Added) > 0 {
			return errors.New("refused")
		}
		return nil
	}
	for _, removed := range []bool{false, true} {
		r.running = start(t, r.cfg, refusing)
		if r.named("pod1") != nil {
			t.Error("pod1 was taken back although it was refused")
		}
		if removed {
			if _, err := remove("pod1"); !errors.Is(err, control.ErrNotFound) {
				t.Errorf("remove pod1, which does not run: %v", err)
			}
		}
		r.stop()
		r.running = start(t, r.cfg, options())
		if got := r.named("pod1") != nil; got == removed {
			t.Errorf("pod1 is back: %t, after its removal: %t", got, removed)
		}
		add(pod, map[bool]string{false: "", true: "pod1 added"}[removed])
		r.stop()
	}

	must(t, link.Delete("pod1"))
	r.running = start(t, r.cfg, options())
	if r.named("pod1") != nil {
		t.Error("pod1, which was deleted while no daemon ran, is not forgotten")
	}
	add(pod, "pod1 added")

	// One that fails is shown until the next change, and makes no other change fail.
	must(t, netlink.LinkDel(find(t, "pod1")))
	r.eventually("pod1 has failed", func() bool { return r.named("pod1").State == "failed" })
	r.eventually("a change forgets pod1", func() bool { // once the daemon has closed it
		var done report.Reload
		_, err := post(&control.AddRequest{RawMessage: json.RawMessage(`{"name": "pod2", "up": true}`)}, &done)
		return err == nil && r.named("pod1") == nil
	})
	add(pod, "pod1 added")
	must(t, netlink.LinkDel(find(t, "pod1")))
	r.eventually("pod1 has failed", func() bool { return r.named("pod1").State == "failed" })
	if done, err := remove("pod1"); err != nil || r.named("pod1") != nil {
		t.Errorf("remove pod1, which has failed: %q, %v", done, err)
	}
	if done, err := remove("pod2"); err != nil || done != "pod2 removed" {
		t.Errorf("%q, %v", done, err)
	}
	r.stop()
}

// A daemon that does not see the namespace of a saved interface, as in a container without the host's /run/netns,
// does not forget the interface: one that sees it takes it back. Once the namespace's file is gone, it is forgotten.
func TestSavedInterfaceOutOfSight(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	pod, file := nstest.New(t), filepath.Join(t.TempDir(), "netns", "pod")
	must(t, os.Mkdir(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, nil, 0o600))
	show := func() { must(t, unix.Mount(pod.Path(), file, "", unix.MS_BIND, "")) }
	hide := func() { must(t, unix.Unmount(file, 0)) }
	show()
	defer unix.Unmount(file, unix.MNT_DETACH) //nolint:errcheck // it is mounted only if the test failed
	cfg := configure(t, "ib0")
	restart := func(want bool) {
		t.Helper()
		r := start(t, cfg, options())
		s, err := control.GetStatus(t.Context(), cfg.Control)
		must(t, err)
		if got := len(s.Interfaces) == 2; got != want {
			t.Errorf("pod1 is served: %t, want %t", got, want)
		}
		r.stop()
	}
	r := start(t, cfg, options())
	add := fmt.Sprintf(`{"name": "pod1", "netns": %q, "up": true}`, file)
	must(t, control.Post(t.Context(), cfg.Control, &control.AddRequest{RawMessage: json.RawMessage(add)}))
	r.stop()
	restart(true)
	hide()
	restart(false)
	moved := filepath.Dir(file) + "-moved"
	must(t, os.Rename(filepath.Dir(file), moved))
	restart(false)
	must(t, os.Rename(moved, filepath.Dir(file)))
	show()
	restart(true)
	hide()
	must(t, os.Remove(file))
	restart(false)
	must(t, os.WriteFile(file, nil, 0o600))
	show()
	restart(false)
	hide()
}

// SIGHUP reloads, and logs each mistake.
func TestHangup(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	hangups := make(chan os.Signal, 1)
	var log syncBuffer
	r := startFile(t, func(_ *config.Config, o *Options) {
		o.Hangup, o.Log = hangups, slog.New(slog.NewTextHandler(&log, nil))
	}, "ib0")
	r.file.edit(func(c *config.Config) { c.Interfaces[0].MTU, c.Interfaces[0].Port = 7, 0 })
	hangups <- os.Interrupt
	for _, want := range []string{"interfaces[0].mtu: 7 is out of range", "interfaces[0].port: ports are numbered from 1"} {
		r.eventually("the log names "+want, func() bool {
			return strings.Contains(log.String(), "configuration not reloaded; the old one stays in effect") && strings.Contains(log.String(), want)
		})
	}
	r.file.edit(func(c *config.Config) { c.Interfaces[0].MTU, c.Interfaces[0].Port = 1300, 1 })
	hangups <- os.Interrupt
	r.eventually("the MTU is that of the file", func() bool { return r.named("ib0").MTU == 1300 })
	r.stop()
}

// An interface may fail after a plan to remove it was made, such as by the end of its container. It is closed
// already, or soon, so nothing of it is left to delete, and it is removed all the same.
func TestInterfaceFailsWhileItIsRemoved(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	for _, failed := range []bool{false, true} {
		cfg, opts := configure(t, "ib0"), options()
		state := func() (string, error) {
			s, err := control.GetStatus(t.Context(), cfg.Control)
			if err != nil {
				return "", err
			}
			if i := slices.IndexFunc(s.Interfaces, func(f report.Interface) bool { return f.Name == "pod1" }); i >= 0 {
				return s.Interfaces[i].State, nil
			}
			return "removed", nil
		}
		opts.Admit = func(next *config.Config) error { // it is called once the plan is made
			if slices.ContainsFunc(next.Interfaces, func(f config.Interface) bool { return f.Name == "pod1" }) || !exists("pod1") {
				return nil
			}
			pod, err := netlink.LinkByName("pod1")
			if err == nil {
				err = netlink.LinkDel(pod)
			}
			for now := ""; err == nil && failed && now != "failed"; time.Sleep(time.Millisecond) {
				now, err = state()
			}
			return err
		}
		r := start(t, cfg, opts)
		must(t, control.Post(t.Context(), cfg.Control, &control.AddRequest{RawMessage: json.RawMessage(`{"name": "pod1", "up": true}`)}))
		r.eventually("pod1 is up", func() bool { now, err := state(); return err == nil && now == "up" })
		q := control.RemoveRequest{Interface: "pod1"}
		if err := control.Post(t.Context(), cfg.Control, &q); err != nil || changesOf(q.Reload) != "pod1 removed" {
			t.Errorf("it has failed: %t: %q, %v", failed, changesOf(q.Reload), err)
		}
		if now, err := state(); err != nil || now != "removed" {
			t.Errorf("it has failed: %t: it is %s, %v", failed, now, err)
		}
		r.stop()
	}
}
