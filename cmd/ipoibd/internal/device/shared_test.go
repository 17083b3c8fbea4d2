package device

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/link/kernel"
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
	other.Step(time.Now(), reset.Event{Kind: reset.Want}, nil)
	other.Step(time.Now(), reset.Event{Kind: reset.Released}, nil)
	b := newShared(t, dir, 0)
	defer b.stop()
	b.await(limit, func(v View) bool {
		return v.Err != nil && strings.Contains(v.Err.Error(), "is shared: waiting for the daemon that resets the device") && strings.Contains(v.Err.Error(), "(other)")
	})
	other.Step(time.Now(), reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone}, nil)
	b.await(limit, func(v View) bool { return v.Session != nil })
}

// Another process that does not release the device within the grace period is named, and the
// reset fails. Its handles do not become zombies. This process continues with the device as
// it is.
func TestR16HeldByAnotherProcess(t *testing.T) {
	const limit, grace = 20 * time.Second, 300 * time.Millisecond
	dir := filepath.Join(t.TempDir(), "locks")
	otherProcess(t, dir)
	b := newShared(t, dir, grace, func(c *Config) { c.Holders = func() []string { return []string{"a program (pid 7)"} } })
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

// A device is reset at once although its lock files were removed. If they cannot be created
// again, a note says so once in a recovery, and the device is reset when they can.
func TestR16LockFilesAreRemoved(t *testing.T) {
	const limit = 60 * time.Second
	dir := filepath.Join(t.TempDir(), "locks")
	b := newShared(t, dir, 300*time.Millisecond)
	defer b.stop()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	resets := func(n uint64) {
		t.Helper()
		b.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == n+1 })
		if got := b.slot.did().resets; got != int(n) {
			t.Errorf("%d resets, want %d", got, n)
		}
	}
	resets(0)
	must(os.Rename(dir, dir+".removed"))
	must(os.RemoveAll(dir + ".removed"))
	start := time.Now()
	b.Ask(qprecovery.ReasonVerbFailed)
	resets(1)
	t.Logf("open again after %v", time.Since(start))
	must(os.Rename(dir, dir+".removed"))
	must(os.WriteFile(dir, nil, 0o600))
	must(os.RemoveAll(dir + ".removed"))
	b.Ask(qprecovery.ReasonVerbFailed)
	b.awaitNote("not reset: reset_failed: the lock files of the device were removed and cannot be created again", limit)
	must(os.Remove(dir))
	must(b.Reset(t.Context()))
	resets(2)
}

// A failed reset that is retried every few seconds is noted once in a recovery, and again
// after an operator has requested a reset.
func TestR29FailureOfAResetIsNotedOnce(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.slot.set(func() { b.slot.stiff = errors.New("stiff") })
		b.Ask(qprecovery.ReasonVerbFailed)
		time.Sleep(time.Minute)
		if n := b.slot.did().resets; n < 3 || !slices.Equal(b.notes(), []string{"not reset: reset_failed: stiff"}) {
			t.Errorf("%d resets, notes %q", n, b.notes())
		}
		if err := b.Reset(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := len(b.notes()); n != 2 {
			t.Errorf("%d notes after a request by an operator, want 2: %q", n, b.notes())
		}
	})
}

// If the lock files can be opened only later, the device is opened at that moment, and the only
// error in the log is the reason why they could not be opened.
func TestR16LocksThatCannotBeOpenedAtFirst(t *testing.T) {
	const limit = 20 * time.Second
	dir := filepath.Join(t.TempDir(), "locks")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	b := newShared(t, dir, 0, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	defer b.stop()
	b.await(limit, func(v View) bool { return errors.Is(v.Err, kernel.ErrNotPrivate) })
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	b.await(limit, func(v View) bool { return v.Session != nil })
	b.stop()
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors in the log:\n%s", n, log.String())
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
	l.Step(time.Now(), reset.Event{Kind: reset.Look}, nil)
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
func newShared(t *testing.T, dir string, grace time.Duration, change ...func(*Config)) *bench {
	b := newBench(t, func(c *Config) {
		for _, f := range change {
			f(c)
		}
		c.Coordinator, c.Grace, c.Means = dir, grace, "link"
	})
	b.fabric = memfabric.New(1)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { b.Run(ctx) })
	b.stop = func() { cancel(); run.Wait(); _ = b.fabric.Close() }
	return b
}

// A reset that returns while the daemon ends is recorded as what it was: as done, or as one that
// the next daemon has to complete.
func TestR21ResetThatReturnsAtTheEndIsRecorded(t *testing.T) {
	for _, result := range []error{nil, resetlock.ErrUnfinished} {
		dir, begun := filepath.Join(t.TempDir(), "locks"), make(chan struct{})
		b := newShared(t, dir, 0, func(c *Config) {
			c.Reset = func(ctx context.Context) error {
				close(begun)
				<-ctx.Done()
				return result
			}
		})
		b.await(20*time.Second, func(v View) bool { return v.Session != nil })
		if err := b.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-begun
		b.stop()
		files, _ := filepath.Glob(filepath.Join(dir, "*.intent"))
		content, err := os.ReadFile(strings.Join(files, ", "))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := reset.Decode(content); err != nil || r.Phase != reset.PhaseIdle || r.Begun != (result != nil) {
			t.Errorf("a reset that returned %v left the record %+v, %v", result, r, err)
		}
	}
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
