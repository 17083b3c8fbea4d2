package coordinator

import (
	"fmt"
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
