package device

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// Two that share an HCA by a socket, as two daemons do: what one asks for is a
// reset of both, the HCA itself is reset once, by whoever hosts, and both go on.
func TestR16SharedBySocket(t *testing.T) {
	const limit = 20 * time.Second // the host's settle time is 2 s of it
	path := filepath.Join(t.TempDir(), "c.sock")
	one, two := newShared(t, path, 0), newShared(t, path, 0)
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

// While those who share the device cannot be reached, the view says so.
func TestR29ViewTellsOfTheHostThatIsMissing(t *testing.T) {
	const limit = 20 * time.Second
	path := filepath.Join(t.TempDir(), "c.sock")
	lock, err := os.Create(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	b := newShared(t, path, 0)
	defer b.stop()
	b.await(limit, func(v View) bool {
		return v.Err != nil && strings.HasPrefix(v.Err.Error(), "waiting for those who share device")
	})
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	b.await(limit, func(v View) bool { return v.Session != nil })
}

// Another process that does not let go within the grace period is named, and the
// reset fails; nobody's handle becomes a zombie for it. Who did let go goes on with
// the device as it is, and so does the other one when it has let go after all.
func TestR16HeldByAnotherProcess(t *testing.T) {
	const limit, grace = 20 * time.Second, 300 * time.Millisecond
	path := filepath.Join(t.TempDir(), "c.sock")
	host := newShared(t, path, grace)
	defer host.stop()
	host.await(limit, func(v View) bool { return v.Session != nil })
	holder := newShared(t, path, grace)
	defer holder.stop()
	s := holder.await(limit, func(v View) bool { return v.Session != nil }).Session
	s.Acquire("user")
	time.Sleep(2500 * time.Millisecond) // a new host resets nothing before it has settled
	if err := host.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	for len(host.notes()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if text := host.notes()[0]; !strings.HasPrefix(text, "not reset: held_by_process: soft (pid ") {
		t.Errorf("the operator reads %q", text)
	}
	host.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
	host.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonOperator), rung(qprecovery.RungWait, qprecovery.ReasonHeld))
	if n := host.slot.did().resets; n != 0 || s.guard.Err() == nil {
		t.Errorf("%d resets, the holder: %v", n, s.guard.Err())
	}
	s.Release("user")
	if err := holder.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*bench{host, holder} {
		b.await(limit, func(v View) bool { return v.Session != nil })
	}
}

// A host that does not answer a request is named in the events, and so is the end
// of its silence; the device is not reset before.
func TestR14R16SilentHostIsNamed(t *testing.T) {
	const limit, grace = 20 * time.Second, 300 * time.Millisecond
	path := filepath.Join(t.TempDir(), "c.sock")
	host := newSilentHost(t, path)
	b := newShared(t, path, grace)
	defer b.stop()
	b.await(limit, func(v View) bool { return v.Session != nil })
	if err := b.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	who := fmt.Sprintf("the daemon that hosts the resets of the device, process %d (other), ", os.Getpid())
	b.awaitNote(who+"does not answer since ", limit)
	if s := b.Status().Coordinator; s.Host.Since.IsZero() || b.View().Session != nil {
		t.Errorf("%+v, %+v", s, b.View())
	}
	host.say(reset.Pending{Reset: 5})
	b.awaitNote(who+"answers again", limit)
	host.say(reset.Ended{Reset: 5, Outcome: reset.OutcomeDone})
	b.await(limit, func(v View) bool { return v.Session != nil && v.Session.Instance == 2 })
}

// silentHost is a host that a test plays: it lets one client in and says nothing
// more by itself.
type silentHost struct {
	*testing.T
	in chan net.Conn
}

func newSilentHost(t *testing.T, path string) *silentHost {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := &silentHost{T: t, in: make(chan net.Conn, 1)}
	go func() { // ends with the first client, or the listener
		nc, err := l.Accept()
		if err == nil {
			h.in <- nc
			h.say(reset.Roster{Host: "other"})
		}
	}()
	return h
}

// say sends a message to the client that is in.
func (h *silentHost) say(m reset.Message) {
	nc := <-h.in
	defer func() { h.in <- nc }()
	frame, err := reset.Append(nil, m)
	if err == nil {
		_, err = nc.Write(frame)
	}
	if err != nil {
		h.Error(err)
	}
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

// newShared runs a device in real time, which coordinates by a socket.
func newShared(t *testing.T, path string, grace time.Duration) *bench {
	b := newBench(t, func(c *Config) { c.Coordinator, c.Grace = path, grace })
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
