package resetlock

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// container gives a daemon PID, mount, network and user namespaces of its own.
func container(_ *childConfig, attr *syscall.SysProcAttr) {
	attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: syscall.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: syscall.Getegid(), Size: 1}}
}

// stepGrace is short, because the tests wait for it at each step. A release takes some
// milliseconds.
const stepGrace = 400 * time.Millisecond

// eachStep runs a test with three daemons, each in its own namespaces, once for each system
// call and action of the first one, which leads a reset or takes part in one.
func eachStep(t *testing.T, leads bool, grace time.Duration, least int, strike func(s *shared, victim, asks, other *daemon)) {
	for n := 1; ; n++ {
		over := false
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			s := newShared(t)
			s.conf.Grace = grace
			victim, a, b := s.join("ib0", container), s.join("ib1", container), s.join("ib2", container)
			victim.order("arm " + strconv.Itoa(n))
			victim.await("armed")
			asks := a
			if leads {
				asks = victim
			}
			asks.order("request")
			at := victim.await("after", "ended").text
			if over = strings.HasPrefix(at, "ended"); over {
				return
			}
			t.Log(at)
			strike(s, victim, a, b)
			for _, d := range []*daemon{a, b} {
				for d.count("pending") > d.count("ended") {
					d.await("ended")
				}
				d.leave()
			}
		})
		if t.Failed() {
			return
		}
		if over {
			if n <= least {
				t.Errorf("%d steps, want %d at least", n-1, least)
			}
			return
		}
	}
}

// retry requests resets until one is done: the current one may fail.
func (d *daemon) retry(tries int) {
	d.Helper()
	for range tries {
		d.order("request")
		if d.await("ended").text == wantsDone {
			return
		}
	}
	d.Errorf("no reset is done:\n%s", d.story())
}

// A leader is killed after each of its system calls. Another process completes the reset, or
// it had not begun. The next reset is done. The stub checks that nothing is reset while a
// process has the device open.
func TestR15R16LeaderIsKilledAtEachStep(t *testing.T) {
	eachStep(t, true, ample, 8, func(_ *shared, victim, asks, _ *daemon) {
		killed := time.Duration(monotonic())
		victim.signal(syscall.SIGKILL)
		asks.order("request")
		done := asks.await(wantsDone).at
		asks.Logf("done %v after the death", done-killed)
	})
}

// A leader is stopped after each of its system calls, for longer than the grace period. No
// process resets the device meanwhile. Once the leader continues, a reset succeeds.
func TestR14R16LeaderIsStoppedAtEachStep(t *testing.T) {
	eachStep(t, true, stepGrace, 8, func(s *shared, victim, asks, _ *daemon) {
		victim.stop()
		asks.order("request")
		time.Sleep(s.conf.Grace + 200*time.Millisecond)
		victim.signal(syscall.SIGCONT)
		victim.order("go")
		if asks.await("ended").text != wantsDone {
			asks.retry(3)
		}
		victim.order("status")
		victim.await("status")
	})
}

// A process that takes part is killed after each of its system calls, and delays nothing.
func TestR15ParticipantIsKilledAtEachStep(t *testing.T) {
	eachStep(t, false, ample, 4, func(_ *shared, victim, asks, _ *daemon) {
		killed := time.Duration(monotonic())
		victim.signal(syscall.SIGKILL)
		asks.Logf("done %v after the death", asks.await(wantsDone).at-killed)
	})
}

// A process that takes part is stopped after each of its system calls. If it holds the device,
// the reset fails after the grace period and names it; otherwise the reset is done. The next
// one is done once the process continues.
func TestR14R16ParticipantIsStoppedAtEachStep(t *testing.T) {
	eachStep(t, false, stepGrace, 4, func(_ *shared, victim, asks, _ *daemon) {
		victim.stop()
		ended := asks.await("ended")
		holds := victim.count("close") == 0
		if took := ended.at - asks.last("request"); ended.text != wantsDone && (!strings.HasPrefix(ended.text, "ended held_by_process") || took < stepGrace) {
			asks.Errorf("%q after %v", ended.text, took)
		}
		if holds && ended.text == wantsDone {
			asks.Error("the device was reset while a process that was stopped has it open")
		}
		victim.signal(syscall.SIGCONT)
		victim.order("go")
		asks.retry(3)
	})
}
