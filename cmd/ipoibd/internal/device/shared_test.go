package device

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// Two that share an HCA by a socket, as two daemons do: what one asks for is a
// reset of both, the HCA itself is reset once, by whoever hosts, and both go on.
func TestR16SharedBySocket(t *testing.T) {
	const limit = 20 * time.Second // the host's settle time is 2 s of it
	path := filepath.Join(t.TempDir(), "c.sock")
	one, two := newShared(t, path), newShared(t, path)
	defer one.stop()
	defer two.stop()
	views := []*bench{one, two}
	for _, b := range views {
		b.await(limit, func(v View) bool { return v.Session != nil })
	}
	two.Ask(qprecovery.ReasonVerbFailed)
	for _, b := range views {
		b.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
	}
	one.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonDeviceReset))
	two.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonVerbFailed))
	if n := one.slot.did().resets + two.slot.did().resets; n != 1 {
		t.Errorf("the HCA was reset %d times", n)
	}
	if a, b := one.Status().Coordinator, two.Status().Coordinator; a.Hosting == b.Hosting {
		t.Errorf("hosts: %+v, %+v", a, b)
	}
}

// newShared runs a device in real time, which coordinates by a socket.
func newShared(t *testing.T, path string) *bench {
	b := newBench(t, func(c *Config) { c.Coordinator = path })
	b.fabric = memfabric.New(1)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { b.Run(ctx) })
	b.stop = func() { cancel(); run.Wait(); _ = b.fabric.Close() }
	return b
}

// The time of a reset of the software HCA on a fabric in memory, from the request
// to the next session, its users included.
func TestResetTime(t *testing.T) {
	const rounds, limit = 20, time.Second // ten times the 100 ms that a reset may take
	b := newShared(t, "")
	defer b.stop()
	ctx, stopUsers := context.WithCancel(t.Context())
	var users sync.WaitGroup
	defer users.Wait()
	defer stopUsers()
	users.Go(func() { new(user).run(ctx, b.Device) })
	b.await(limit, func(v View) bool { return v.Session != nil })
	var worst time.Duration
	for n := range uint64(rounds) {
		begin := time.Now()
		if err := b.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		b.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == n+2 })
		worst = max(worst, time.Since(begin))
	}
	t.Logf("the longest of %d resets took %s", rounds, worst)
}
