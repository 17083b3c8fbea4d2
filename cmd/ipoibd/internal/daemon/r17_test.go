package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/process/processtest"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link/linktest/nstest"
	"ipoibd/qprecovery/reset"
)

// The system disk may lie behind this very HCA. With every cache dropped, and a
// filter that ends the process when it opens a file on a disk or starts a
// program, the
// device is reset by the operator's word and for a fatal event, the first reset
// of the process among them; and not one page has to be read from a disk.
func TestR17DeviceReset(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	resetWithoutDisk(t, configure(t, "ib0"), options())
}

// The same with other daemons invited to share the device.
func TestR17SharedDeviceReset(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0")
	dir := filepath.Join(filepath.Dir(cfg.Control), "r")
	cfg.Devices[0].Coordinator = dir
	resetWithoutDisk(t, cfg, options())
	// A folder that is not empty cannot be removed without opening it.
	slot, err := backend.New(t.Context(), cfg.Devices[0], backend.Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	id := slot.List(t.Context())[0]
	for _, suffix := range []string{".use", ".intent"} {
		must(t, os.Remove(filepath.Join(dir, reset.Device{NodeGUID: id.NodeGUID, Name: id.Name}.Key()+suffix)))
	}
	must(t, os.Remove(dir))
}

func resetWithoutDisk(t *testing.T, cfg *config.Config, opts Options) {
	t.Helper()
	must(t, netlink.LinkSetUp(find(t, "under0-peer")))
	opts.AllowFaults, opts.LockMemory = true, true
	r := start(t, cfg, opts)
	must(t, netlink.LinkSetUp(find(t, "ib0")))
	r.waitState(0, report.InterfaceUp)
	w := newWire(t)
	w.serves("before the resets")
	recovered := r.follow("ib0")

	locked := isLocked(t)
	if err := processtest.DropCaches(); err != nil {
		t.Logf("the caches are as they were: %v", err)
	}
	guard, err := processtest.DenyFiles()
	must(t, err)
	before := majorFaults(t)
	for i, order := range []func() error{r.orderReset, r.orderFatal, r.orderReset} {
		must(t, order())
		select {
		case e := <-recovered:
			t.Logf("reset %d: %s because of %s, %s, outage %s", i, e.Rung, e.Reason, e.Duration, e.Outage)
		case <-time.After(limit):
			t.Fatalf("reset %d: ib0 is not back within %s", i, limit)
		}
		w.serves(fmt.Sprintf("after reset %d", i))
	}
	faults := majorFaults(t) - before
	t.Logf("%d major faults, memory locked: %t; opened, on no disk: %v", faults, locked, guard.Opened())
	if locked && faults != 0 {
		t.Errorf("%d major faults while the device was reset", faults)
	}
	r.stop()
	for _, file := range []string{historyOf(cfg.Control), strings.TrimSuffix(cfg.Control, ".sock") + ".lock"} {
		must(t, os.Remove(file)) // else the folder is not empty
	}
}

func (r *running) orderReset() error {
	return control.Post(r.t.Context(), r.cfg.Control, &control.ResetRequest{Scope: control.ScopeDevice})
}

func (r *running) orderFatal() error {
	return control.Post(r.t.Context(), r.cfg.Control, &control.FaultRequest{Kind: "device_fatal"})
}

// follow returns the ends of recoveries of an interface from now on.
func (r *running) follow(scope string) <-chan journal.Entry {
	ends := make(chan journal.Entry, 16)
	go func() {
		err := control.GetEvents(r.t.Context(), r.cfg.Control, 0, true, func(e journal.Entry) error {
			if e.Scope == scope && e.Kind == journal.KindRecovered {
				ends <- e
			}
			return nil
		})
		if err != nil && r.t.Context().Err() == nil {
			r.t.Errorf("follow events: %v", err)
		}
	}()
	return ends
}

// isLocked reports whether the daemon has locked its memory, which it has to where
// it may.
func isLocked(t *testing.T) bool {
	t.Helper()
	u, err := processtest.ReadUsage()
	must(t, err)
	if u.Locked == 0 && process.LockMemory() == nil {
		t.Fatal("the daemon has not locked its memory, and might have")
	}
	return u.Locked > 0
}

func majorFaults(t *testing.T) int64 {
	t.Helper()
	n, err := processtest.MajorFaults()
	must(t, err)
	return n
}

// wire sends on ib0 and listens at the other end of the underlay, by sockets that
// are open from the start.
type wire struct {
	t    *testing.T
	ib0  *net.UDPConn
	peer int // packet socket
}

func newWire(t *testing.T) *wire {
	t.Helper()
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	must(t, err)
	must(t, netlink.AddrAdd(find(t, "ib0"), addr))
	peer, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
	must(t, err)
	t.Cleanup(func() { unix.Close(peer) })
	must(t, unix.Bind(peer, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: find(t, "under0-peer").Attrs().Index}))
	must(t, unix.SetsockoptTimeval(peer, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	ib0, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 255), Port: 9})
	must(t, err)
	t.Cleanup(func() { ib0.Close() })
	return &wire{t: t, ib0: ib0, peer: peer}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// serves broadcasts a text on ib0 until it goes by on the underlay.
func (w *wire) serves(text string) {
	w.t.Helper()
	frame := make([]byte, 1<<16)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		_, _ = w.ib0.Write([]byte(text)) // without a carrier it fails
		n, err := unix.Read(w.peer, frame)
		if err == nil && bytes.Contains(frame[:n], []byte(text)) {
			return
		}
	}
	w.t.Fatalf("%q does not go by on the underlay within %s", text, limit)
}
