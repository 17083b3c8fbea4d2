package guest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/kernel"
)

// bootLimit is far more than the four seconds that a boot takes on an idle machine,
// because each guest needs a processor.
const bootLimit = 2 * time.Minute

// defaultMemory is a guest's memory in MiB, including its root file system.
const defaultMemory = 384

// Spec describes a guest.
type Spec struct {
	Series kernel.Series
	CPUs   int // 0 means 1
	Memory int // in MiB; 0 means enough for one daemon
	NICs   []NIC
	// Counted makes the guest's clock advance by a nanosecond with each instruction, and with this machine's clock while the guest
	// idles. How long the guest computes then does not depend on how fast and how busy this machine is. (QEMU's -icount; the guest's
	// CPUs share one thread.)
	Counted bool
	// Programs are those of this machine that the guest has besides those of every guest: by their paths, which the guest
	// keeps, or by their names, in /usr/bin.
	Programs []string
}

// NIC is a network interface of a guest.
type NIC struct {
	Segment *nstest.Segment // also determines its MTU
	// Host selects the NIC's addresses nstest.IPv4 and nstest.IPv6. With Bare the NIC
	// has no addresses and is down.
	Host int
	Bare bool
	// Bridged puts the NIC behind its own PCI bridge, through which the kernel can
	// reset it.
	Bridged bool
	// Wire carries the NIC's frames instead of a segment: one end of a pair of connected datagram sockets, which Boot
	// closes. The NIC is up, without addresses, and its MTU is WireMTU.
	Wire *os.File
}

// WireMTU is the MTU of a NIC on a wire, in bytes: enough for the largest MTU of InfiniBand.
const WireMTU = 4200

// Guest is a running virtual machine. Its methods may be called from any
// goroutine; those that return no error fail the test.
type Guest struct {
	tb      testing.TB
	series  kernel.Series
	console string // path of its log
	cmd     *exec.Cmd
	errors  strings.Builder // QEMU's messages
	end     *net.UnixConn   // the test's end of the channel
	booted  chan struct{}   // closed when the agent is ready
	gone    chan struct{}   // closed when the channel has ended
	ended   chan struct{}   // closed when QEMU has ended, after gone

	mu     sync.Mutex // guards the fields below, and writes to end
	lastID uint32
	open   map[uint32]*Process // unfinished requests
}

// Boot starts a guest, waits until its agent answers and sets its network up. The
// guest ends no later than the test.
func Boot(tb testing.TB, spec Spec) *Guest {
	tb.Helper()
	return BootAll(tb, spec)[0]
}

// BootAll boots guests at the same time.
func BootAll(tb testing.TB, specs ...Spec) []*Guest {
	tb.Helper()
	start := time.Now()
	guests := make([]*Guest, len(specs))
	for i, spec := range specs {
		guests[i] = launch(tb, spec)
	}
	for i, g := range guests {
		g.waitBooted()
		tb.Logf("guest %d with kernel %s booted in %v", i, specs[i].Series, time.Since(start).Round(time.Millisecond))
		g.addNICs(specs[i].NICs)
	}
	return guests
}

// launch starts a guest.
func launch(tb testing.TB, spec Spec) *Guest {
	tb.Helper()
	g := &Guest{
		tb: tb, series: spec.Series, console: filepath.Join(tb.TempDir(), "console"),
		booted: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{}),
		open: map[uint32]*Process{},
	}
	if err := g.start(spec); err != nil {
		tb.Fatalf("start a guest: %v", err)
	}
	tb.Cleanup(g.cleanUp)
	return g
}

// waitBooted waits until the agent is ready.
func (g *Guest) waitBooted() {
	g.tb.Helper()
	select {
	case <-g.booted:
	case <-g.gone:
		g.tb.Fatal("the guest ended during its boot")
	case <-time.After(bootLimit):
		g.tb.Fatalf("the guest did not boot within %v", bootLimit)
	}
}

// addNICs sets the NICs up as the spec requires. It uses a single program, because
// starting one is slow in a guest.
func (g *Guest) addNICs(nics []NIC) {
	g.tb.Helper()
	var batch strings.Builder
	for i, nic := range nics {
		dev := fmt.Sprintf("eth%d", i)
		if nic.Wire != nil {
			fmt.Fprintf(&batch, "link set %s mtu %d up\n", dev, WireMTU)
			continue
		}
		fmt.Fprintf(&batch, "link set %s mtu %d\n", dev, nic.Segment.MTU())
		if !nic.Bare {
			fmt.Fprintf(&batch, "link set %s up\n", dev)
			fmt.Fprintf(&batch, "addr add %s/24 dev %s\n", nstest.IPv4(nic.Host), dev)
			fmt.Fprintf(&batch, "addr add %s/64 dev %s nodad\n", nstest.IPv6(nic.Host), dev)
		}
	}
	if batch.Len() > 0 {
		g.Put("/run/nics", 0o644, []byte(batch.String()))
		g.Run("ip", "-batch", "/run/nics")
	}
}

// Close ends the guest; its processes end without a result. A second call does
// nothing.
func (g *Guest) Close() {
	_ = g.cmd.Process.Kill()
	<-g.ended
}

// cleanUp ends the guest, and shows its console if the test failed.
func (g *Guest) cleanUp() {
	g.Close()
	if g.tb.Failed() {
		console, _ := os.ReadFile(g.console)
		g.tb.Logf("the guest's console:\n%s%s", tail(console), g.errors.String())
	}
}

// maxConsole bounds the part of a console that is shown, in bytes.
const maxConsole = 16 << 10

func tail(text []byte) []byte { return text[max(0, len(text)-maxConsole):] }
