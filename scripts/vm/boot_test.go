package vm

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// endLimit bounds programs that end immediately in a guest: ten times a second.
const endLimit = 10 * time.Second

// A guest boots its kernel, libibverbs lists its rxe device, and the agent
// reports correctly how programs end.
func TestBoot(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.KernelsInTurn(t, func(t *testing.T, series kernel.Series) {
		spec := guest.Spec{Series: series, NICs: []guest.NIC{{Segment: nstest.NewSegment(t, 1500)}}}
		g := guest.Boot(t, spec)
		requireRelease(t, g, spec)
		requireNoCX16(t, g)
		g.Run("rdma", "link", "add", rxe0, "type", "rxe", "netdev", "eth0")
		if out := g.Run("ibv_devices"); !strings.Contains(out, rxe0) {
			t.Errorf("ibv_devices does not list rxe0:\n%s", out)
		}
		requireEndings(t, g)
		requireKill(t, g)
		requireEnd(t, g)
	})
}

func requireRelease(t *testing.T, g *guest.Guest, spec guest.Spec) {
	t.Helper()
	want, err := spec.Release()
	if got := strings.TrimSpace(g.Run("uname", "-r")); err != nil || got != want {
		t.Errorf("the kernel is %s, want %s (%v)", got, want, err)
	}
}

// The kernel must not find the instruction that the emulator implements
// wrongly.
func requireNoCX16(t *testing.T, g *guest.Guest) {
	t.Helper()
	flags := strings.Fields(g.Run("cat", "/proc/cpuinfo"))
	if !slices.Contains(flags, "cx8") || slices.Contains(flags, "cx16") {
		t.Errorf("the CPU has %v, want cx8 and not cx16", flags)
	}
}

func requireEndings(t *testing.T, g *guest.Guest) {
	t.Helper()
	p := g.Start("sh", "-c", "echo out; echo err >&2; exit 7")
	result := p.Wait(endLimit)
	if result.Code != 7 || p.Stdout() != "out\n" || p.Stderr() != "err\n" {
		t.Errorf("%v, stdout %q, stderr %q, want exit status 7, out and err", result, p.Stdout(), p.Stderr())
	}
}

func requireKill(t *testing.T, g *guest.Guest) {
	t.Helper()
	p := g.Start("sleep", "1000")
	p.Signal(syscall.SIGKILL)
	if result := p.Wait(endLimit); result.Signal != syscall.SIGKILL {
		t.Errorf("after SIGKILL: %v, want the signal", result)
	}
}

// Processes in a guest end with it.
func requireEnd(t *testing.T, g *guest.Guest) {
	t.Helper()
	p := g.Start("sleep", "1000")
	g.Close()
	select {
	case <-p.Exited():
	case <-time.After(endLimit):
		t.Error("a process outlives its guest")
	}
}
