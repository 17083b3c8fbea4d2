package vm

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// shareConfig configures one of the daemons that share a device: its control socket, how it resets the
// device, the grace period and its interface.
const shareConfig = `
control: %s
devices:
  - device: rxe0
    reset: %s
    grace: %s
    coordinator: /run/reset
interfaces:
  - name: %s
`

// shareGrace is what a reset leaves to a daemon that is stopped.
const shareGrace = 5 * time.Second

// Two daemons share the device of a guest, and a peer outside sees whether they work. One boot serves all scenarios:
// each ends with both daemons at work, but the last.
func TestR16R21Sharing(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, underMTU)
		g := newRxeGuest(t, series, segment)
		g.Run("sysctl", "-q", "-w", "net.ipv4.conf.all.arp_ignore=1") // each interface answers for itself
		peer := newEndpoint(t, newHost(t, segment), 1, "--underlay", nstest.Dev, "--standard-mtu")
		peer.join()
		first, second := newSharer(t, g, peer, 0, "link"), newSharer(t, g, peer, 1, "link")
		requireSharedReset(t, first, second)
		requireStoppedNamed(t, first, second)
		requireStoppedNamed(t, second, first)
		requireProgramKeepsDevice(t, g, first, second)
		requireHandOverInReset(t, g, first, second)
		requireResetCutShort(t, g, first, second)
	})
}

// A program that takes no part in the locks has the device open. No daemon takes the device from
// it: the reset fails, and the log names the program, although the daemon runs in its sandbox.
// Once the program has ended, the device is reset.
func requireProgramKeepsDevice(t *testing.T, g inGuest, first, second *sharer) {
	t.Helper()
	index := kernelIndex(g)
	program := holdDevice(t, g)
	start := time.Now()
	first.ipoibd("reset", "device")
	eventually(t, "the program is named", func() bool { return first.says("not reset: held_by_process: ibv_asyncwatch (pid ") })
	named := time.Since(start)
	first.waitReachesPeer()
	second.waitReachesPeer()
	t.Logf("program named after %v, for a grace of %v", named.Round(time.Millisecond), shareGrace)
	if named < shareGrace {
		t.Errorf("named after %v, before the grace of %v is over", named, shareGrace)
	}
	if kernelIndex(g) != index {
		t.Error("the device was deleted while a program had it open")
	}
	program.Signal(syscall.SIGKILL)
	awaitExit(t, program)
	requireSharedReset(t, first, second)
}

// A daemon that has released the device for another daemon's reset, which takes long, refuses to hand
// over and continues. The reset fails in the end, because a program keeps the device open. Then both
// daemons hand over, and their successors can reset the device.
func requireHandOverInReset(t *testing.T, g inGuest, leader, other *sharer) {
	t.Helper()
	index := kernelIndex(g)
	program := holdDevice(t, g)
	releases := func() int { return strings.Count(other.daemon.Stderr(), "a reset of the shared device is pending") }
	before := releases()
	order := leader.start("ipoibd", "reset", "device", "--control", leader.control) // its end is not awaited, as the grace is short
	eventually(t, "the device is released for the reset", func() bool { return releases() > before })
	leader.daemon.Signal(syscall.SIGSTOP)
	taker := other.start("ipoibd", other.takeOverArgs()...)
	awaitExit(t, taker)
	if text := taker.Stderr(); !strings.Contains(text, "the running daemon continues: device rxe0: cannot be handed over now") {
		t.Errorf("asked to hand over in a reset: %s", text)
	}
	leader.daemon.Signal(syscall.SIGCONT)
	awaitExit(t, order)
	leader.waitReachesPeer()
	other.waitReachesPeer()
	if kernelIndex(g) != index {
		t.Error("the device was deleted while a program had it open")
	}
	program.Signal(syscall.SIGKILL)
	awaitExit(t, program)
	for _, s := range []*sharer{other, leader} {
		former := s.daemon
		s.runDaemon(s.takeOverArgs()...)
		awaitExit(t, former)
		s.waitReachesPeer()
	}
	requireSharedReset(t, leader, other)
}

// A daemon is killed between the deletion of the device and its addition, in a reset by
// link. The daemon that shares the device completes the reset; if there is none, the next
// one that starts does.
func requireResetCutShort(t *testing.T, g inGuest, leader, other *sharer) {
	t.Helper()
	leader.killInReset(func() bool {
		other.waitReachesPeer()
		return strings.Contains(other.daemon.Stderr(), "resuming_interrupted_reset=true")
	})
	other.stop()
	leader.runAgain()
	leader.killInReset(func() bool { return !g.Try("test", "-e", rxePath) })
	start := time.Now()
	leader.runAgain()
	t.Logf("the next daemon reaches the peer after %v", time.Since(start).Round(time.Millisecond))
	if log := leader.daemon.Stderr(); !strings.Contains(log, "completing a reset of the device that was cut short") {
		t.Errorf("the daemon does not say that it completes the reset:\n%s", log)
	}
}

// A daemon is killed between the unbinding of the function's driver and its binding, in a reset
// by driver and in one by pci. The next daemon binds the driver and adds the device again. The
// addresses of the netdev, which is another one, are the network manager's to restore.
func TestR21FunctionResetCutShort(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, underMTU)
		g := newRxeGuest(t, series, segment)
		peer := newEndpoint(t, newHost(t, segment), 1, "--underlay", nstest.Dev, "--standard-mtu")
		peer.join()
		driver := strings.TrimSpace(g.Run("readlink", "-f", "/sys/class/net/eth0/device/..")) + "/driver"
		for n, means := range []string{"driver", "pci"} {
			s := newSharer(t, g, peer, n, means)
			s.killInReset(func() bool { return !g.Try("test", "-e", rxePath) && !g.Try("test", "-e", driver) })
			start := time.Now()
			s.runAgain()
			t.Logf("%s: the next daemon reaches the peer after %v", means, time.Since(start).Round(time.Millisecond))
			if log := s.daemon.Stderr(); !strings.Contains(log, "completing a reset of the device that was cut short") {
				t.Errorf("%s: the daemon does not say that it completes the reset:\n%s", means, log)
			}
			s.stop()
		}
	})
}

const rxePath = "/sys/class/infiniband/" + rxe0

// killInReset has the daemon reset the device, and kills it when the device vanishes. Until
// the kernel has freed the device, some milliseconds later, the daemon does not run: it
// dies before it adds the device again. The guest may be too slow for that: the daemon
// lives, or hit returns false for the one that was killed. Then another try is made.
func (s *sharer) killInReset(hit func() bool) {
	s.tb.Helper()
	const tries = 10
	for n := range tries {
		var daemon struct{ PID int }
		if err := json.Unmarshal([]byte(s.Run("ipoibd", "status", "--json", "--control", s.control)), &daemon); err != nil || daemon.PID == 0 {
			s.tb.Fatalf("status of the daemon: %+v, %v", daemon, err)
		}
		resets := s.resets()
		killer := s.start("sh", "-c", fmt.Sprintf(killerScript, rxePath, daemon.PID))
		eventually(s.tb, "the killer runs", func() bool { return killer.Stdout() != "" })
		s.Try("ipoibd", "reset", "device", "--control", s.control) // the daemon may die before it answers
		eventually(s.tb, "the daemon is killed, or has reset the device", func() bool { return s.killed() || s.resets() > resets })
		if !s.killed() { // or its end is not reported yet
			s.Try("kill", strings.TrimSpace(killer.Stdout()))
			awaitExit(s.tb, killer)
			if strings.Contains(killer.Stdout(), "killed") {
				awaitExit(s.tb, s.daemon)
			}
		}
		switch {
		case !s.killed():
			s.waitReachesPeer()
		case hit():
			s.tb.Logf("daemon %d was killed at the right moment by try %d", s.number, n+1)
			return
		default:
			s.runAgain()
		}
	}
	s.tb.Fatalf("the daemon was not killed at the right moment in %d tries", tries)
}

// killerScript kills a process once a file has vanished, and says so. It prints its own process ID first. Until it
// kills, SIGTERM ends it.
const killerScript = "trap exit TERM; echo $$; while [ -e %s ]; do :; done; trap '' TERM; kill -9 %d && echo killed"

func (s *sharer) killed() bool {
	select {
	case <-s.daemon.Exited():
		return true
	default:
		return false
	}
}

// resets returns how often the daemon has logged the end of a reset.
func (s *sharer) resets() int { return strings.Count(s.daemon.Stderr(), "the device was reset") }

// runAgain starts the daemon again, and waits until its interface reaches the peer. A daemon that
// was killed may have left another netdev.
func (s *sharer) runAgain() {
	s.tb.Helper()
	s.runDaemon("run", "--config", s.file(), "--log-level", "debug")
	s.configureUnderlay()
	s.waitReachesPeer()
}

func (s *sharer) takeOverArgs() []string {
	return []string{"run", "--take-over", "--config", s.file(), "--log-level", "debug"}
}

// file is the configuration of the daemon.
func (s *sharer) file() string { return fmt.Sprintf("/run/ib%d.yaml", s.number) }

// sharer is a daemon that shares the device of its guest, with an interface of
// its own.
type sharer struct {
	*endpoint
	peer *endpoint
}

// newSharer starts a daemon whose interface reaches the peer.
func newSharer(t *testing.T, g inGuest, peer *endpoint, number int, means string) *sharer {
	t.Helper()
	name := fmt.Sprintf("ib%d", number)
	s := &sharer{&endpoint{machine: g, tb: t, number: number, control: "/run/ipoibd/" + name + ".sock"}, peer}
	g.Put(s.file(), 0o600, fmt.Appendf(nil, shareConfig, s.control, means, shareGrace, name))
	s.runDaemon("run", "--config", s.file(), "--log-level", "debug")
	t.Cleanup(s.showLog)
	s.waitDevice("the device is open", func(d deviceStatus) bool { return d.State == "open" })
	g.Run("ip", "link", "set", name, "up")
	g.Run("ip", "addr", "add", s.address(1)+"/24", "dev", name)
	peer.Run("ip", "addr", "add", s.address(2)+"/24", "dev", ifName)
	s.waitReachesPeer()
	return s
}

// address is one of the network between the interface and the peer.
func (s *sharer) address(host int) string { return fmt.Sprintf("10.45.%d.%d", s.number, host) }

func (s *sharer) waitReachesPeer() {
	s.tb.Helper()
	eventually(s.tb, fmt.Sprintf("daemon %d reaches the peer", s.number), func() bool {
		return s.Try("ping", "-n", "-c", "1", "-W", "1", s.address(2))
	})
}

func (s *sharer) opens() int {
	s.tb.Helper()
	d, _ := s.status()
	return d.Opens
}

func requireSharedReset(t *testing.T, sharers ...*sharer) {
	t.Helper()
	index := kernelIndex(sharers[0])
	var before []int
	for _, s := range sharers {
		before = append(before, s.opens())
	}
	start := time.Now()
	sharers[0].ipoibd("reset", "device")
	for i, s := range sharers {
		s.waitDevice("the device is open again", func(d deviceStatus) bool { return d.State == "open" && d.Opens > before[i] })
		s.waitReachesPeer()
	}
	t.Logf("reset of a shared device: both at work after %v; the kernel's number %s, was %s",
		time.Since(start).Round(time.Millisecond), kernelIndex(sharers[0]), index)
	if kernelIndex(sharers[0]) == index {
		t.Error("the device is the one before: it was not deleted")
	}
}

// kernelIndex is what the kernel calls rxe0, and no device after it.
func kernelIndex(m machine) string {
	index, _, _ := strings.Cut(m.Run("rdma", "dev", "show", rxe0), ":")
	return index
}

// requireStoppedNamed stops one: the other is told that its request has failed, and both
// have the device as before.
func requireStoppedNamed(t *testing.T, asks, stopped *sharer) {
	t.Helper()
	index := kernelIndex(asks)
	asks.waitDevice("the other daemon is seen", func(d deviceStatus) bool { return d.Coordinator.Phase == "idle" && len(d.Coordinator.Members) == 1 })
	stopped.daemon.Signal(syscall.SIGSTOP)
	start := time.Now()
	asks.ipoibd("reset", "device")
	eventually(t, "the stopped daemon is named", func() bool { return asks.says("not reset: held_by_process: ipoibd (pid ") })
	named := time.Since(start)
	asks.waitReachesPeer()
	t.Logf("stopped daemon named after %v, for a grace of %v", named.Round(time.Millisecond), shareGrace)
	if named < shareGrace {
		t.Errorf("named after %v, before the grace of %v is over", named, shareGrace)
	}
	if kernelIndex(asks) != index {
		t.Error("the device was deleted while a daemon held it")
	}
	stopped.daemon.Signal(syscall.SIGCONT)
	stopped.waitReachesPeer()
}
