package e2e

import (
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// The observers of the fault tests notice an outage and lost addresses.
func TestFaultWitnesses(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	monitor, stream, probe := a.monitor(), a.stream(b), b.probe(a)
	probe.waitAnswered(t, repairLimit)
	if _, err := stream.waitMoves(streamLimit); err != nil || len(monitor.lost()) > 0 {
		t.Errorf("before any fault: %v, %q", err, monitor.lost())
	}

	cut, changes := time.Now(), a.carrierChanges()
	a.Run("ip", "link", "set", nstest.Dev, "down")
	eventually(t, repairLimit, "carrier off", func() bool { return !a.carrier() })
	eventually(t, repairLimit, "the connection stands still", func() bool {
		_, err := stream.waitMoves(lasting)
		return err != nil
	})
	if got := probe.silence(cut); got < lasting {
		t.Errorf("the probe saw a silence of %v, the connection stood still for %v", got, lasting)
	}
	if n := a.carrierChanges() - changes; n != 1 {
		t.Errorf("%d changes of the carrier, want 1", n)
	}
	a.Run("ip", "addr", "del", a.ip4()+"/24", "dev", ifName)
	eventually(t, repairLimit, "the address and its route are lost", func() bool { return len(monitor.lost()) >= 2 })
}
