package device

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// Two devices share an HCA by a directory, as in two daemons: a request by one resets both, the
// HCA itself is reset once, by the one that asks, and both continue.
func TestR16SharedByDirectory(t *testing.T) {
	const limit = 20 * time.Second
	dir := filepath.Join(t.TempDir(), "locks")
	one, two := newShared(t, dir, 0), newShared(t, dir, 0)
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
	if a, b := one.slot.did().resets, two.slot.did().resets; a != 0 || b != 1 {
		t.Errorf("the HCA was reset %d and %d times", a, b)
	}
}

// While another process resets the device, the view of one that starts says so.
func TestR29ViewShowsTheResetThatIsWaitedFor(t *testing.T) {
	const limit = 20 * time.Second
	dir := filepath.Join(t.TempDir(), "locks")
	other := otherProcess(t, dir)
	other.Step(reset.Event{Kind: reset.Want})
	other.Step(reset.Event{Kind: reset.Released, ID: 1})
	b := newShared(t, dir, 0)
	defer b.stop()
	b.await(limit, func(v View) bool {
		return v.Err != nil && strings.Contains(v.Err.Error(), "is shared: waiting for the daemon that resets the device") && strings.Contains(v.Err.Error(), "(other)")
	})
	other.Step(reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone})
	b.await(limit, func(v View) bool { return v.Session != nil })
}

// Another process that does not release the device within the grace period is named, and the
// reset fails. Its handles do not become zombies. This process continues with the device as
// it is.
func TestR16HeldByAnotherProcess(t *testing.T) {
	const limit, grace = 20 * time.Second, 300 * time.Millisecond
	dir := filepath.Join(t.TempDir(), "locks")
	otherProcess(t, dir)
	b := newShared(t, dir, grace)
	defer b.stop()
	b.await(limit, func(v View) bool { return v.Session != nil })
	if err := b.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.awaitNote("not reset: held_by_process: a program (pid 7)", limit)
	b.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
	b.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonOperator), rung(qprecovery.RungWait, qprecovery.ReasonHeld))
	if n := b.slot.did().resets; n != 0 {
		t.Errorf("%d resets", n)
	}
}

// otherProcess takes part by the directory, as another process does that has the device
// open.
func otherProcess(t *testing.T, dir string) *resetlock.Locks {
	t.Helper()
	l, err := resetlock.Open(resetlock.Config{Dir: dir, Log: quiet, Config: reset.Config{
		Name: "other", Device: reset.Device{NodeGUID: guidSame, Name: "soft", Means: "link"}, Exclusive: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Step(reset.Event{Kind: reset.Look})
	return l
}

// awaitNote waits for a note that begins with text.
func (b *bench) awaitNote(text string, limit time.Duration) {
	b.t.Helper()
	noted := func(n string) bool { return strings.HasPrefix(n, text) }
	for end := time.Now().Add(limit); !slices.ContainsFunc(b.notes(), noted); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("no note %q in %q", text, b.notes())
		}
	}
}

// newShared runs a device in real time, which is shared by a directory.
func newShared(t *testing.T, dir string, grace time.Duration) *bench {
	b := newBench(t, func(c *Config) {
		c.Coordinator, c.Grace, c.Means = dir, grace, "link"
		c.Holders = func() []string { return []string{"a program (pid 7)"} }
	})
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
	b := newShared(t, "", 0)
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
