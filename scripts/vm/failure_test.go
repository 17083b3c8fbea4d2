package vm

import (
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// blow is a failure of the real device while a daemon and a connection use it.
type blow struct {
	name   string
	strike func(real, soft *endpoint)
	rung   string   // expected rung; empty if none
	times  int      // how often it is entered, including by the operator's command
	sameQP bool     // the QP keeps its number
	events []string // events that the driver must report
}

var blows = []blow{
	{"send with a bad key", badSend, "reset_qp", 1, true, nil},
	{"receive with a bad key", badReceive, "reset_qp", 1, true, nil},
	{"CQ overrun", overrun, "rebuild_cq", 2, false, []string{"CQ_ERR"}},
	{"port down and up", flap, "", 0, false, []string{"PORT_ERR", "PORT_ACTIVE"}},
	{"GID gone and back", readdress, "", 0, false, []string{"GID_CHANGE"}},
	{"another GID comes and goes", otherAddress, "", 0, true, []string{"GID_CHANGE"}},
}

// Each failure is detected from the driver's reports and repaired by the
// expected rung, and a TCP connection over ib0 survives it.
func TestR01R02R25Failures(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series, "--allow-faults")
		s := startStream(t, real, soft)
		for _, b := range blows {
			b.requireRepair(t, real, s)
		}
		requireAccounted(t, real, soft, s)
	})
}

func (b blow) requireRepair(t *testing.T, e *endpoint, s *stream) {
	t.Helper()
	_, before := e.status()
	logged := len(e.daemon.Stderr())
	b.strike(e, s.to)
	eventually(t, b.name+": "+b.rung, func() bool {
		_, now := e.status()
		return now.Recovery.Rungs[b.rung] >= before.Recovery.Rungs[b.rung]+b.times
	})
	moved := s.waitMoves()
	_, after := e.status()
	t.Logf("%s: traffic after %v; statuses %v; rungs %v for %v; QP %x, was %x", b.name, moved.Round(time.Millisecond), after.statuses(),
		after.Recovery.Rungs, after.Recovery.Reasons, after.QP.QPN, before.QP.QPN)
	for _, event := range b.events {
		eventually(t, b.name+": "+event, func() bool {
			return strings.Contains(e.daemon.Stderr()[logged:], "type="+event)
		})
	}
	if b.sameQP && after.QP.QPN != before.QP.QPN {
		t.Errorf("%s: QPN %#x, want the same as before, %#x", b.name, after.QP.QPN, before.QP.QPN)
	}
}

func (e *endpoint) ipoibd(args ...string) {
	e.tb.Helper()
	e.Run("ipoibd", append(args, "--control", e.control)...)
}

func badSend(e, _ *endpoint) { e.ipoibd("fault", "send_error_err") }

// badReceive damages the next receive to be posted, and sends until it is used,
// after all earlier ones.
func badReceive(e, soft *endpoint) {
	e.ipoibd("fault", "recv_bad_key")
	soft.Run("ping", "-n", "-q", "-f", "-c", "3000", e.ip4())
}

// overrun makes the daemon rebuild its CQs, one of them too small.
func overrun(e, _ *endpoint) {
	e.ipoibd("fault", "cq_small")
	e.ipoibd("reset", "cq")
}

func flap(e, _ *endpoint) {
	e.Run("ip", "link", "set", "eth0", "down")
	eventually(e.tb, "carrier off", func() bool { return !e.carrier() })
	e.Run("ip", "link", "set", "eth0", "up")
	eventually(e.tb, "carrier on", e.carrier)
}

func readdress(e, _ *endpoint) {
	e.Run("ip", "addr", "del", nstest.IPv4(0)+"/24", "dev", "eth0")
	eventually(e.tb, "GID gone", func() bool {
		_, now := e.status()
		return now.QP == nil || now.QP.GID != nstest.IPv4(0)
	})
	e.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", "eth0")
	eventually(e.tb, "GID back", func() bool {
		_, now := e.status()
		return now.QP != nil && now.QP.GID == nstest.IPv4(0)
	})
}

func otherAddress(e, _ *endpoint) {
	const other = "198.51.100.1/24"
	e.Run("ip", "addr", "add", other, "dev", "eth0")
	e.Run("ip", "addr", "del", other, "dev", "eth0")
}
