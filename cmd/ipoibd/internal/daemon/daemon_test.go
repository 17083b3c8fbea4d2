package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// limit bounds every wait of a test; it is ten times what is seen, but for the end
// of a container: an idle kernel frees its last socket, and so its namespace, some
// 10 s later, and twice that was seen (CONFIG_RCU_LAZY; LAZY_FLUSH_JIFFIES,
// kernel/rcu/tree_nocb.h).
const limit = 30 * time.Second

// running is a daemon under test, in the test's own namespace.
type running struct {
	t      *testing.T
	cfg    *config.Config
	cancel context.CancelFunc
	ended  chan error
}

// underlay makes a netdev with an address that the daemon can run on; the other
// end of the wire is up, without an address.
func underlay(t *testing.T, name string, n int) {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1500, HardwareAddr: mac}, PeerName: name + "-peer"}))
	must(t, netlink.LinkSetUp(find(t, name+"-peer")))
	addr, err := netlink.ParseAddr(fmt.Sprintf("192.0.2.%d/24", n))
	must(t, err)
	must(t, netlink.AddrAdd(find(t, name), addr))
	must(t, netlink.LinkSetUp(find(t, name)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return l
}

func exists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// configure makes a configuration of interfaces on one device on under0.
func configure(t *testing.T, names ...string) *config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "d-") //nolint:usetesting // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	dev := config.NewDevice()
	dev.Underlay, dev.PKeys = "under0", []hca.PKey{hca.PKeyDefault, 0x8001}
	cfg := &config.Config{Control: filepath.Join(dir, "c.sock"), Devices: []config.Device{dev}}
	for _, name := range names {
		f := config.NewInterface()
		f.Name = name
		cfg.Interfaces = append(cfg.Interfaces, f)
	}
	must(t, cfg.Validate())
	return cfg
}

func options() Options {
	return Options{Version: "test", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// start runs the daemon and returns when it answers.
func start(t *testing.T, cfg *config.Config, opts Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cfg: cfg, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- Run(ctx, cfg, opts) }()
	t.Cleanup(cancel)
	r.eventually("the daemon answers", func() bool {
		_, err := control.GetStatus(t.Context(), cfg.Control)
		return err == nil
	})
	return r
}

func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

func (r *running) iface(i int) report.Interface {
	r.t.Helper()
	s, err := control.GetStatus(r.t.Context(), r.cfg.Control)
	must(r.t, err)
	return s.Interfaces[i]
}

func (r *running) waitState(i int, state string) report.Interface {
	r.t.Helper()
	var s report.Interface
	r.eventually(r.cfg.Interfaces[i].Name+" is "+state, func() bool {
		s = r.iface(i)
		return s.State == state
	})
	s.Counters, s.Kernel = nil, nil // too long for a message
	return s
}

// wait returns what Run ended with.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(limit):
		r.t.Fatalf("the daemon did not end within %s", limit)
		return nil
	}
}

func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	if err := r.wait(); err != nil {
		r.t.Errorf("the daemon ended with %v", err)
	}
}

// usage counts what could be lost; a moment is granted to what ends late.
type usage struct{ goroutines, fds int }

func use() usage { u := process.ReadUsage(); return usage{u.Goroutines, u.FDs} }

func (u usage) check(t *testing.T) {
	t.Helper()
	now := use()
	for end := time.Now().Add(limit); now.goroutines > u.goroutines || now.fds > u.fds; now = use() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%+v, were %+v\n%s", now, u, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Start and stop, many times: ib0 stays, is adopted, and gets its carrier back
// without being set up again; nothing is lost by it.
func TestStopKeepsAndStartAdopts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0")
	r := start(t, cfg, options())
	if s := r.waitState(0, report.InterfaceDown); s.Adopted || s.Carrier || s.QP != nil {
		t.Errorf("new: %+v", s)
	}
	must(t, netlink.LinkSetUp(find(t, "ib0")))
	first := r.waitState(0, report.InterfaceUp)
	r.stop()
	before := use()
	for range 20 {
		if a := find(t, "ib0").Attrs(); a.OperState == netlink.OperUp {
			t.Fatalf("stopped, but ib0 has a carrier")
		}
		r = start(t, cfg, options())
		if s := r.waitState(0, report.InterfaceUp); !s.Adopted || s.MAC != first.MAC || s.QP.QPN == first.QP.QPN {
			t.Fatalf("adopted: %+v, was %+v", s, first)
		}
		r.stop()
	}
	before.check(t)
	if _, err := os.Stat(cfg.Control); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("control socket: %v", err)
	}
}

// With Remove the interface goes at the end, also under another name and in a
// container.
func TestRemove(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	opts := options()
	opts.Remove = true
	r := start(t, configure(t, "ib0"), opts)
	if err := link.Delete("ib0"); !errors.Is(err, link.ErrOwned) {
		t.Errorf("delete while it runs: %v", err)
	}
	r.stop()
	if exists("ib0") {
		t.Error("ib0 is there")
	}
	r = start(t, configure(t, "ib0"), opts)
	must(t, netlink.LinkSetName(find(t, "ib0"), "fabric"))
	must(t, netlink.LinkSetUp(find(t, "fabric")))
	r.waitState(0, report.InterfaceUp)
	r.stop()
	if exists("fabric") || exists("ib0") {
		t.Error("the renamed interface is there")
	}
	r = start(t, configure(t, "ib0"), opts)
	container := nstest.New(t)
	move(t, "ib0", container)
	r.stop()
	if left := container.Run("ip", "-o", "link"); strings.Contains(left, "ib0") {
		t.Errorf("the moved interface is there:\n%s", left)
	}
}

// A start that fails leaves what was there before, and nothing else.
func TestFailedStartLeavesNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	start(t, configure(t, "old"), options()).stop()
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "taken"}}))
	before := use()
	err := Run(t.Context(), configure(t, "old", "new", "taken"), options())
	if !errors.Is(err, link.ErrNameTaken) || !strings.HasPrefix(err.Error(), "interface taken: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("ended with %v", err)
	}
	before.check(t)
	if !exists("old") || exists("new") || !exists("taken") {
		t.Errorf("old %t, new %t, taken %t", exists("old"), exists("new"), exists("taken"))
	}
}

// A daemon that waits for the UDP port of another one until it is stopped leaves no interface
// behind, unless the host has given it an address. One that has got the port keeps its
// interface, as does one that adopted it.
func TestStopWhileThePortIsTakenLeavesNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	first := start(t, configure(t, "ib0"), options())
	status := func(r *running) *report.Status {
		s, err := control.GetStatus(t.Context(), r.cfg.Control)
		must(t, err)
		return s
	}
	open := func(r *running) bool { return status(r).Devices[0].State == report.DeviceOpen }
	first.eventually("the first has the port", func() bool { return open(first) })
	second := start(t, configure(t, "ib1"), options())
	waits := func(r *running) {
		must(t, netlink.LinkSetUp(find(t, "ib1")))
		r.eventually("the second waits for the port", func() bool {
			s := status(r).Interfaces[0]
			return s.State == report.InterfaceWaiting && strings.Contains(s.Detail, "4791")
		})
	}
	waits(second)
	second.stop()
	if exists("ib1") {
		t.Error("ib1 is left behind by a daemon that never had the port")
	}
	second = start(t, configure(t, "ib1"), options())
	must(t, netlink.AddrAdd(find(t, "ib1"), &netlink.Addr{IPNet: netlink.NewIPNet(net.IPv4(10, 9, 0, 1))}))
	waits(second)
	second.stop()
	if !exists("ib1") {
		t.Error("ib1 is deleted although the host has given it an address")
	}
	second = start(t, configure(t, "ib1"), options())
	first.stop()
	second.eventually("the second has the port", func() bool { return open(second) })
	second.stop()
	first = start(t, configure(t, "ib0"), options())
	first.eventually("the first has the port again", func() bool { return open(first) })
	start(t, configure(t, "ib1"), options()).stop()
	first.stop()
	if !exists("ib0") || !exists("ib1") {
		t.Errorf("ib0 is there: %t, ib1: %t; want both", exists("ib0"), exists("ib1"))
	}
}

// Stopped before it has begun: nothing hangs, nothing is lost.
func TestStopAtOnce(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0", "ib1")
	start(t, cfg, options()).stop()
	before := use()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		if err := Run(ctx, cfg, options()); err != nil {
			t.Errorf("stopped after %d ms: %v", i, err)
		}
		cancel()
	}
	before.check(t)
}

// One interface is deleted, then another one with its container: the rest goes
// on, the status says why, the name is free; with the last one the daemon ends.
func TestInterfacesTakenAway(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	r := start(t, configure(t, "ib0", "ib1", "ib2"), options())
	for i, name := range []string{"ib0", "ib1", "ib2"} {
		must(t, netlink.LinkSetUp(find(t, name)))
		r.waitState(i, report.InterfaceUp)
	}
	must(t, netlink.LinkDel(find(t, "ib0")))
	if s := r.waitState(0, report.InterfaceFailed); !strings.Contains(s.Detail, "another process deleted the interface") {
		t.Errorf("deleted: %q", s.Detail)
	}
	container := nstest.New(t)
	move(t, "ib1", container)
	r.waitState(1, report.InterfaceDown)
	container.Run("ip", "link", "set", "ib1", "up")
	r.waitState(1, report.InterfaceUp)
	container.Close()
	if s := r.waitState(1, report.InterfaceFailed); !strings.Contains(s.Detail, "its container exited") {
		t.Errorf("container destroyed: %q", s.Detail)
	}
	if s := r.iface(2); s.State != report.InterfaceUp || s.QP.State != "RTS" {
		t.Errorf("the third: %+v", s)
	}
	r.eventually("the name is free", func() bool { return errors.Is(link.Delete("ib0"), link.ErrNotFound) })
	must(t, netlink.LinkDel(find(t, "ib2")))
	err := r.wait()
	if !errors.Is(err, iface.ErrDeleted) {
		t.Errorf("ended with %v", err)
	}
}

func move(t *testing.T, name string, to *nstest.Namespace) {
	t.Helper()
	f, err := os.Open(to.Path())
	must(t, err)
	defer f.Close()
	must(t, netlink.LinkSetNsFd(find(t, name), int(f.Fd())))
}

// The netdev under the device goes and returns, with the same MAC and with
// another one: ib0 stays as it is and works again.
func TestNetdevReturns(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0")
	cfg.Devices[0].AllowOtherDevice = true
	r := start(t, cfg, options())
	must(t, netlink.LinkSetUp(find(t, "ib0")))
	first := r.waitState(0, report.InterfaceUp)
	for i, n := range []int{1, 9, 1} {
		must(t, netlink.LinkDel(find(t, "under0")))
		if s := r.waitState(0, report.InterfaceWaiting); !strings.Contains(s.Detail, "device") {
			t.Errorf("gone: %+v", s)
		}
		r.eventually("the carrier goes", func() bool { return !r.waitState(0, report.InterfaceWaiting).Carrier })
		underlay(t, "under0", n)
		if s := r.waitState(0, report.InterfaceUp); s.MAC != first.MAC || s.QP.GID.String() != fmt.Sprintf("192.0.2.%d", n) {
			t.Errorf("return %d: %+v, was %+v", i, s, first)
		}
	}
	s, err := control.GetStatus(t.Context(), r.cfg.Control)
	must(t, err)
	if d := s.Devices[0]; d.State != report.DeviceOpen || d.Opens != 4 || d.Ports[0].State != hca.PortActive {
		t.Errorf("device: %+v", d)
	}
	r.stop()
}

// Two devices, two partitions: each interface is up on its own.
func TestSeveralDevices(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	underlay(t, "under1", 2)
	cfg := configure(t, "ib0", "ib1", "ib2")
	second := cfg.Devices[0]
	second.Name, second.Underlay = "second", "under1"
	cfg.Devices = append(cfg.Devices, second)
	cfg.Interfaces[1].PKey, cfg.Interfaces[2].Device = 0x8001, "second"
	must(t, cfg.Validate())
	r := start(t, cfg, options())
	for i, gid := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"} {
		must(t, netlink.LinkSetUp(find(t, cfg.Interfaces[i].Name)))
		if s := r.waitState(i, report.InterfaceUp); s.QP.GID.String() != gid || s.QP.PKey != cfg.Interfaces[i].PKey {
			t.Errorf("%s: %+v", s.Name, s.QP)
		}
	}
	must(t, netlink.LinkSetDown(find(t, "under1")))
	if s := r.waitState(2, report.InterfaceWaiting); s.Detail != "port 1 is DOWN: port is not active: under1 is down, or has no carrier; bring it up: ip link set under1 up" {
		t.Errorf("under1 is down: %q", s.Detail)
	}
	if s := r.iface(0); s.State != report.InterfaceUp {
		t.Errorf("under1 is down, and ib0 is %s", s.State)
	}
	r.stop()
}

// Status is answered at any time while the daemon stops, or refused; it never
// hangs, and the stop does not wait for those who ask.
func TestStatusWhileStopping(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0", "ib1", "ib2", "ib3")
	for range 5 {
		r := start(t, cfg, options())
		asked := make(chan struct{})
		for range 4 {
			go func() {
				defer func() { asked <- struct{}{} }()
				for {
					s, err := control.GetStatus(t.Context(), cfg.Control)
					if err != nil {
						return
					}
					for _, f := range s.Interfaces {
						if f.State == report.InterfaceFailed {
							t.Errorf("%s is %s: %s", f.Name, f.State, f.Detail)
						}
					}
				}
			}()
		}
		r.stop()
		for range 4 {
			<-asked
		}
	}
}
