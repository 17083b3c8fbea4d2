package resetlock

import (
	"fmt"
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

func dead(c *childConfig, _ *syscall.SysProcAttr)   { c.Dead = true }
func denied(c *childConfig, _ *syscall.SysProcAttr) { c.Denied = true }

// One daemon requests a reset, all release the device, it is reset once, and all continue,
// idle ones included.
func TestR11R13R16DaemonsShareADevice(t *testing.T) {
	for n := 2; n <= 3; n++ {
		t.Run(fmt.Sprintf("%d daemons", n), func(t *testing.T) {
			s := newShared(t)
			var all []*daemon
			for i := range n {
				all = append(all, s.join(fmt.Sprintf("ib%d", i)))
			}
			all[0].order("request")
			asked := all[0].await("request").at
			for _, d := range all {
				d.await(wantsDone)
			}
			t.Logf("all continue %v after the request", all[n-1].last(wantsDone)-asked)
			for _, d := range all {
				d.leave()
				if d.count("pending") != 1 || d.count("ended") != 1 {
					t.Errorf("%s:\n%s", d.name, d.story())
				}
			}
			if n := all[0].count("reset begins"); n != 1 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

// A newcomer waits until the current reset is over, and does not delay it.
func TestR13NewcomerDuringAReset(t *testing.T) {
	s := newShared(t)
	s.conf.Verb = 500 * time.Millisecond
	first := s.join("ib0")
	first.order("request")
	first.await("reset begins")
	newcomer := s.join("ib1")
	over := first.await("reset ends").at
	if joined := newcomer.last("joined"); joined < over {
		t.Errorf("opened the device %v before the reset was over", over-joined)
	}
	newcomer.leave()
	if newcomer.count("pending")+newcomer.count("ended") > 0 {
		t.Error("it had to release the device before it had it")
	}
}

// H5: a reset waits for a slow daemon. One that does not release the device within the grace
// period is named, and the reset fails.
func TestR14R16HeldByAnotherProcess(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 3 * time.Second
	asks, late := s.join("ib0"), s.join("ib1", slow(300*time.Millisecond))
	asks.order("request")
	late.await(wantsDone)
	if verb := asks.await("reset begins"); verb.at < late.last("close") {
		t.Errorf("reset %v before the other had released", late.last("close")-verb.at)
	}
	asks.await(wantsDone)
	holder := s.join("ib2", dead)
	asks.order("request")
	asked := asks.await("request").at
	ended := asks.await("ended")
	if want := fmt.Sprintf("(pid %d)", holder.cmd.Process.Pid); !strings.HasPrefix(ended.text, "ended held_by_process") || !strings.Contains(ended.text, want) {
		t.Errorf("%q does not name process %d", ended.text, holder.cmd.Process.Pid)
	}
	if took := ended.at - asked; took < s.conf.Grace {
		t.Errorf("failed after %v", took)
	}
	holder.await("ended held_by_process")
}

// A leader that is stopped is named, once. The reset continues when it does.
func TestR14R16StoppedLeaderIsNamed(t *testing.T) {
	s := newShared(t)
	s.conf.Grace, s.conf.Limit, s.conf.Verb = time.Second, time.Second, 800*time.Millisecond
	leader, other := s.join("ib0"), s.join("ib1")
	leader.order("request")
	leader.await("reset begins")
	leader.stop()
	silent := other.await("silent")
	if want := fmt.Sprintf("silent ib0 %d", leader.cmd.Process.Pid); silent.text != want {
		t.Errorf("%q, want %q", silent.text, want)
	}
	leader.signal(syscall.SIGCONT)
	other.await("answers")
	other.await("ended")
}

// H6: a process is killed in its reset, and there is no other one. The next one completes the
// reset before it opens the device.
func TestR16R21CutShort(t *testing.T) {
	s := newShared(t)
	s.conf.Verb = time.Second
	victim := s.join("ib0", container)
	victim.order("request")
	victim.await("reset begins")
	victim.signal(syscall.SIGKILL)
	victim.awaitEnd()
	next := s.join("ib1")
	if next.past[0].text != "reset begins complete=true" {
		t.Errorf("it did not complete the reset first:\n%s", next.story())
	}
}

// M11: daemons of two HCAs that share a directory by mistake reset only their own HCAs.
func TestR16DirectoryOfTwoDevices(t *testing.T) {
	s := newShared(t)
	one := s.join("ib0")
	two := s.join("ib1", configured(func(c *childConfig) { c.GUID, c.Device = 1, c.Device+"1" }))
	one.order("request")
	one.await(wantsDone)
	two.order("status")
	if status := two.await("status").text; two.count("pending") > 0 || status != "status using idle sharers=[] err=<nil>" {
		t.Errorf("the daemon of the other HCA took part: %s", status)
	}
}

// A process that finds no device to reset reports that to the others.
func TestR16DeviceThatIsGone(t *testing.T) {
	s := newShared(t)
	asks, other := s.join("ib0", configured(func(c *childConfig) { c.Absent = true })), s.join("ib1")
	asks.order("request")
	asks.await("ended no_device")
	other.await("ended no_device")
}

// A process that may not reset hands the reset over. If no other one may, the reset fails.
func TestR16HandOver(t *testing.T) {
	s := newShared(t)
	asks := s.join("ib0", denied)
	asks.order("request")
	asks.await("ended not_permitted")
	able := s.join("ib1", container)
	asks.order("request")
	able.await("reset begins")
	asks.await(wantsDone)
}

// A process whose resets affect only itself does not disturb the others with them, and takes
// part in theirs.
func TestR16ResetsAlone(t *testing.T) {
	s := newShared(t)
	s.conf.Device += "-unused"
	alone, other := s.join("ib0", configured(func(c *childConfig) { c.Alone, c.Device = true, c.Device+"0" })), s.join("ib1")
	alone.order("request")
	alone.await(wantsDone)
	if other.count("pending") > 0 {
		t.Error("the other daemon had to release the device")
	}
	other.order("request")
	alone.await(wantsDone)
	other.await(wantsDone)
}

// A user that does not release the device is abandoned by its own process.
func TestR14OwnUserIsLeftBehind(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 300 * time.Millisecond
	d := s.join("ib0", dead)
	d.order("request")
	d.await("abandon")
	d.await(wantsDone)
}

// A reset that does not return in time has failed for its own process, and keeps the
// device closed to the others until it has returned.
func TestR06ResetThatHangs(t *testing.T) {
	s := newShared(t)
	s.conf.Limit, s.conf.Verb = 300*time.Millisecond, time.Second
	hangs, other := s.join("ib0", configured(func(c *childConfig) { c.Hangs, c.Device = true, c.Device+"0" })), s.join("ib1")
	hangs.order("request")
	hangs.await("ended reset_timeout")
	hangs.order("request")
	hangs.await("ended reset_timeout an earlier reset")
	over := hangs.await("reset ends").at
	if ended := other.await(wantsDone).at; ended < over {
		t.Errorf("the other process opens the device %v before the reset has returned", over-ended)
	}
}

// A reset opens no file and starts no program, not even one that takes over from a process
// that died: opening a file on a disk would end the process, and others are counted.
func TestR17ResetOpensNoFile(t *testing.T) {
	s := newShared(t)
	s.conf.Verb = 500 * time.Millisecond
	leader, a, b := s.join("ib0"), s.join("ib1"), s.join("ib2")
	for _, d := range []*daemon{a, b} {
		d.order("seal")
		d.await("sealed")
	}
	leader.order("request")
	leader.await("reset begins")
	leader.signal(syscall.SIGKILL)
	a.await(wantsDone)
	b.await(wantsDone)
	b.order("request")
	a.await(wantsDone)
	b.await(wantsDone)
	for _, d := range []*daemon{a, b} {
		d.order("opened")
		if got := d.await("opened").text; got != "opened 0 files" {
			t.Errorf("%s: %s", d.name, got)
		}
	}
	b.order("open /etc/hostname")
	b.awaitEnd()
	if !strings.Contains(b.errs.String(), "SIGSYS") {
		t.Errorf("after a file was opened: %v, want SIGSYS: the seal does not hold", b.cmd.ProcessState)
	}
}

// The reset of one daemon removes the device and cannot bring it back. Another daemon brings it
// back after its grace period, even if the first has been killed. So does a daemon that starts.
func TestR21AnotherDaemonBringsTheDeviceBack(t *testing.T) {
	for _, starts := range []bool{false, true} {
		s := newShared(t)
		loser := s.join("ib0", configured(func(c *childConfig) { c.Loses = true }))
		join := func() *daemon { return s.join("ib1", configured(func(c *childConfig) { c.Grace = time.Second })) }
		var other *daemon
		if !starts {
			other = join()
		}
		loser.order("request")
		loser.await("ended reset_failed")
		loser.signal(syscall.SIGKILL)
		if starts {
			loser.awaitEnd()
			other = join()
		}
		if other.count("reset begins complete=true") == 0 {
			other.await("reset begins complete=true")
			other.await("ended done")
		}
		other.leave()
	}
}
