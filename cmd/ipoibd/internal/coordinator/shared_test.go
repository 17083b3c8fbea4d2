package coordinator

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wantsDone is how a reset ends well for a daemon.
const wantsDone = "ended done"

func configured(change func(*childConfig)) func(*childConfig, *syscall.SysProcAttr) {
	return func(c *childConfig, _ *syscall.SysProcAttr) { change(c) }
}

func slow(d time.Duration) func(*childConfig, *syscall.SysProcAttr) {
	return configured(func(c *childConfig) { c.Slow = d })
}

func dead(c *childConfig, _ *syscall.SysProcAttr) { c.Dead = true }

// One asks, all let go, the device is reset once, all go on: also who is idle.
func TestR11R13R16DaemonsShareADevice(t *testing.T) {
	for n := 2; n <= 3; n++ {
		for asks := range n {
			t.Run(fmt.Sprintf("%d daemons, number %d asks", n, asks), func(t *testing.T) { shareADevice(t, n, asks) })
		}
	}
}

func shareADevice(t *testing.T, n, asks int) {
	s := newShared(t)
	var all []*daemon
	for i := range n {
		all = append(all, s.join(fmt.Sprintf("ib%d", i)))
	}
	begin := all[asks]
	begin.order("request")
	asked := begin.await("request").at
	var closed time.Duration
	for _, d := range all {
		d.await("pending")
	}
	verb := all[0].await("reset begins").at
	for _, d := range all {
		d.await(wantsDone)
		closed = max(closed, d.last("close"))
		if d.last("close") > verb {
			t.Errorf("%s let go after the reset began", d.name)
		}
	}
	t.Logf("reset %v after the request, %v after the last let go", verb-asked, verb-closed)
	for _, d := range all {
		d.leave()
	}
	if n := all[0].count("reset begins"); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// A newcomer waits until the reset under way is over, and delays nobody.
func TestR13NewcomerDuringAReset(t *testing.T) {
	s := newShared(t)
	host, late := s.join("ib0"), s.join("ib1", slow(time.Second))
	host.order("request")
	late.await("pending")
	newcomer := s.join("ib2")
	over := host.await("reset ends").at
	if joined := newcomer.last("joined"); joined < over {
		t.Errorf("opened the device %v before the reset was over", over-joined)
	}
	late.await(wantsDone)
	newcomer.leave()
	if newcomer.count("pending")+newcomer.count("ended") > 0 {
		t.Error("it was told of a reset before it had anything")
	}
}

func TestR14SlowWithinTheGrace(t *testing.T) {
	s := newShared(t)
	host, late := s.join("ib0"), s.join("ib1", slow(time.Second))
	host.order("request")
	late.await(wantsDone)
	if verb := host.await("reset begins"); verb.at < late.last("close") || verb.text != "reset begins" {
		t.Errorf("%+v, but it let go at %v", verb, late.last("close"))
	}
	host.await(wantsDone)
}

// A stopped process outlasts the grace period with the device open. It is
// named; then it goes on, is told, and the next reset is done.
func TestR14R16StoppedProcessIsNamed(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 2 * time.Second
	host, stopped := s.join("ib0"), s.join("ib1")
	stopped.stop()
	host.order("request")
	asked := host.await("request").at
	ended := host.await("ended")
	if want := "ended held_by_process " + stopped.member(); ended.text != want {
		t.Errorf("%q, want %q", ended.text, want)
	}
	took := ended.at - asked
	t.Logf("failed %v after the request", took)
	if took < s.conf.Grace {
		t.Error("before the grace was over")
	}
	stopped.signal(syscall.SIGCONT)
	stopped.await("pending")
	stopped.await("ended held_by_process")
	host.order("request")
	host.await(wantsDone)
	stopped.await(wantsDone)
	if n := host.count("reset begins"); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// The host is the one that is stopped: who asks for a reset names it after the
// grace period, and the reset is done once it goes on, not before.
func TestR14R16StoppedHostIsNamed(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 2 * time.Second
	host, other := s.join("ib0"), s.join("ib1")
	host.stop()
	other.order("request")
	asked := other.await("request").at
	silent := other.await("silent")
	if want := "silent " + host.member(); silent.text != want {
		t.Errorf("%q, want %q", silent.text, want)
	}
	took := silent.at - asked
	t.Logf("named %v after the request", took)
	if took < s.conf.Grace {
		t.Error("before the grace was over")
	}
	if other.count("pending")+other.count("reset begins") > 0 {
		t.Error("the device was reset over the head of its host")
	}
	host.signal(syscall.SIGCONT)
	other.await("pending")
	other.await("answers " + host.member())
	host.await(wantsDone)
	other.await(wantsDone)
	if n := other.count("silent"); n != 1 {
		t.Errorf("named %d times", n)
	}
}

// A client that dies with the device open holds up nothing.
func TestR15KilledClient(t *testing.T) {
	s := newShared(t)
	host, victim := s.join("ib0"), s.join("ib1", dead)
	host.order("request")
	victim.await("pending")
	killed := time.Duration(monotonic())
	victim.signal(syscall.SIGKILL)
	t.Logf("reset %v after the death", host.await("reset begins").at-killed)
	host.await(wantsDone)
}

// The host's PID namespace has no number for the other processes: it names them
// without one, and still learns of their end.
func TestR15R16AnotherPIDNamespace(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 2 * time.Second
	host := s.join("ib0", container)
	victim, other := s.join("ib1", dead), s.join("ib2")
	other.order("request")
	other.await("ended held_by_process ib1[0]")
	other.order("request")
	victim.await("pending")
	victim.await("ended")
	victim.await("pending")
	killed := time.Duration(monotonic())
	victim.signal(syscall.SIGKILL)
	t.Logf("reset %v after the death", host.await("reset begins").at-killed)
	other.await(wantsDone)
	host.await(wantsDone)
}

// container gives a daemon namespaces of its own.
func container(_ *childConfig, attr *syscall.SysProcAttr) {
	attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
}

// The host dies while nothing goes on: another takes over and does its work.
func TestR16KilledHost(t *testing.T) {
	s := newShared(t)
	host, a, b := s.join("ib0"), s.join("ib1"), s.join("ib2")
	killed := time.Duration(monotonic())
	host.signal(syscall.SIGKILL)
	next, other := newHost(t, a, b)
	t.Logf("another was seen to host %v after the death", time.Duration(monotonic())-killed)
	other.order("request")
	next.await("reset begins")
	next.await(wantsDone)
	other.await(wantsDone)
}

// newHost waits until one of two hosts and the other has joined it.
func newHost(t *testing.T, a, b *daemon) (host, other *daemon) {
	t.Helper()
	if awaitHost(t, a, b) == a {
		return a, b
	}
	return b, a
}

// awaitHost waits until one daemon hosts, all have joined it and no reset is
// under way.
func awaitHost(t *testing.T, all ...*daemon) *daemon {
	t.Helper()
	for end := time.Now().Add(ample); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if host := hostOf(all); host != nil {
			return host
		}
	}
	t.Fatal("no host that all know")
	return nil
}

// hostOf returns the host if all daemons agree on it; nil if not.
func hostOf(all []*daemon) (host *daemon) {
	for _, d := range all {
		d.order("status")
		if strings.HasPrefix(d.await("status").text, "status hosting=true") {
			host = d
		}
	}
	if host == nil {
		return nil
	}
	want := fmt.Sprintf("status hosting=false host=%d up=true phase=idle", host.cmd.Process.Pid)
	for _, d := range all {
		if last := d.past[len(d.past)-1].text; d != host && last != want {
			return nil
		}
	}
	return host
}

// The host dies in the middle of a reset, which another takes up.
func TestR15R16KilledHostDuringAReset(t *testing.T) {
	t.Run("pending", func(t *testing.T) { killedHost(t, "pending", slow(time.Second)) })
	t.Run("resetting", func(t *testing.T) { killedHost(t, "reset begins", slow(0)) })
}

func killedHost(t *testing.T, when string, late func(*childConfig, *syscall.SysProcAttr)) {
	s := newShared(t)
	s.conf.Verb = 500 * time.Millisecond
	host, a, b := s.join("ib0"), s.join("ib1"), s.join("ib2", late)
	a.order("request")
	host.await(when)
	killed := time.Duration(monotonic())
	host.signal(syscall.SIGKILL)
	t.Logf("ended %v after the host's death", max(a.await(wantsDone).at, b.await(wantsDone).at)-killed)
	a.leave()
	b.leave()
	for _, d := range []*daemon{a, b} {
		if n := d.count("pending"); n != 1 {
			t.Errorf("%s was told %d times", d.name, n)
		}
	}
	if n := a.count("reset begins") + b.count("reset begins"); n != 1 {
		t.Errorf("%d resets by the new host", n)
	}
}

// A takeover and a reset open no file and start no program: the kernel kills
// who does.
func TestR17TakeoverAndResetOpenNoFile(t *testing.T) {
	s := newShared(t)
	host, a, b := s.join("ib0"), s.join("ib1"), s.join("ib2")
	for _, d := range []*daemon{a, b} {
		d.order("seal")
		d.await("sealed")
	}
	host.signal(syscall.SIGKILL)
	a.order("request")
	a.await(wantsDone)
	b.await(wantsDone)
	b.order("open")
	b.awaitEnd()
	if status := b.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGSYS {
		t.Errorf("opening a file ended with %v: the seal does not hold", status.Signal())
	}
}
