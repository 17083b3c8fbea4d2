package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	addr1 = netip.MustParseAddr("10.0.0.1")
)

// bench is a device on a fabric, with the slot that it is plugged into.
type bench struct {
	*Device
	t      *testing.T
	fabric *memfabric.Fabric
	slot   *slot
	users  context.Context
	stop   func() // ends the users, then Run, and waits for it
}

// slot holds at most one HCA, and is the Lister and the Opener of the device.
type slot struct {
	fabric *memfabric.Fabric

	mu      sync.Mutex
	guid    hca.GUID // of what is plugged in; zero: nothing is
	index   uint32
	changed chan struct{}   // closed and replaced by each change
	slow    time.Duration   // that opening takes
	mute    bool            // changes are not announced
	late    time.Duration   // how long a list takes
	stiff   error           // the error of resets
	forever chan struct{}   // a verb that hangs forever returns once it is closed
	port    *memfabric.Port // opened last
	faults  *faults.Device  // of the instance opened last
	done    done
}

// done counts openings and resets.
type done struct{ opens, resets int }

func (s *slot) did() done {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// set changes a slot without announcing it.
func (s *slot) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

var (
	guidSame  = hca.GUID{2, 0, 0, 0xff, 0xfe, 0, 0, 1}
	guidOther = hca.GUID{2, 0, 0, 0xff, 0xfe, 0, 0, 2}
	errAbsent = errors.New("not plugged in")
)

func (s *slot) open(context.Context) (hca.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done.opens++
	if s.guid == (hca.GUID{}) {
		return nil, errAbsent
	}
	if slow, n := s.slow, s.done.opens; slow > 0 {
		s.mu.Unlock()
		time.Sleep(slow)
		s.mu.Lock()
		if n != s.done.opens {
			return nil, fmt.Errorf("opened again in the meantime: %w", hca.ErrBusy)
		}
	}
	s.port = s.fabric.Attach("eth0", 1500, addr1)
	dev, err := soft.Open(soft.Config{Name: "soft", Transport: s.port, GUID: s.guid})
	if err != nil {
		return nil, err
	}
	s.faults = faults.Wrap(dev, faults.Options{Forever: s.forever})
	return s.faults, nil
}

// reset resets the software HCA.
func (s *slot) reset(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done.resets++
	if s.stiff != nil {
		return s.stiff
	}
	if s.faults == nil { // it was never open
		return nil
	}
	s.faults.Clear()
	s.faults.Release()
	return s.port.Close()
}

func (s *slot) List(context.Context) []qprecovery.Identity {
	s.mu.Lock()
	ids, late := s.list(), s.late
	s.mu.Unlock()
	time.Sleep(late)
	return ids
}

func (s *slot) list() []qprecovery.Identity {
	if s.guid == (hca.GUID{}) {
		return nil
	}
	return []qprecovery.Identity{{NodeGUID: s.guid, PortGUID: s.guid, SysImageGUID: s.guid, Index: s.index, Name: "soft"}}
}

func (s *slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	out := make(chan []qprecovery.Identity)
	go func() {
		defer close(out)
		for ctx.Err() == nil {
			s.mu.Lock()
			list, changed := s.list(), s.changed
			s.mu.Unlock()
			select {
			case out <- list:
			case <-changed:
				continue
			case <-ctx.Done():
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// unplug removes the HCA, and plug inserts one.
func (s *slot) unplug() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port.Remove()
	s.become(hca.GUID{})
}

// isolate removes the HCA from the list; an open instance still works.
func (s *slot) isolate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.become(hca.GUID{})
}

func (s *slot) plug(guid hca.GUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index++
	s.become(guid)
}

func (s *slot) become(guid hca.GUID) {
	s.guid = guid
	if !s.mute {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func (s *slot) inject(t *testing.T, f faults.Fault) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.faults.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func newSlot(fabric *memfabric.Fabric) *slot {
	return &slot{fabric: fabric, guid: guidSame, index: 1, changed: make(chan struct{})}
}

// newBench makes a device that does not run yet.
func newBench(t *testing.T, change func(*Config)) *bench {
	b := &bench{t: t, fabric: memfabric.New(1)}
	b.slot = newSlot(b.fabric)
	cfg := Config{Name: "soft", Open: b.slot.open, List: b.slot, Reset: b.slot.reset, Complete: b.slot.reset, Journal: journal.New(), Log: quiet}
	if change != nil {
		change(&cfg)
	}
	b.Device = New(cfg)
	return b
}

// neverOpens is an Opener that waits until its context ends.
func neverOpens(ctx context.Context) (hca.Device, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Ask is a request of a user of the session that is open.
func (b *bench) Ask(reason qprecovery.Reason) {
	var instance uint64
	if s := b.View().Session; s != nil {
		instance = s.Instance
	}
	b.Device.Ask(instance, reason)
}

// run starts the device; the test calls stop.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.Background())
	users, stopUsers := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	b.users = users
	b.stop = func() {
		if b.t.Failed() {
			b.abandonAll()
		}
		stopUsers()
		synctest.Wait()
		cancel()
		<-done
		_ = b.fabric.Close()
	}
	synctest.Wait()
}

// abandonAll lets Run end although a test that failed still holds a session.
func (b *bench) abandonAll() {
	b.onRun((*owner).abandon)
}

// onRun has Run call f, and waits for it, unless Run has ended.
func (b *bench) onRun(f func(*owner)) {
	done := make(chan struct{})
	select {
	case b.calls <- func(o *owner) { f(o); close(done) }:
		<-done
	case <-b.ended:
	}
}

// bubble runs a test in synctest, on a device that is open; its end shows that no
// goroutine is left.
func bubble(t *testing.T, change func(*Config), f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, change)
		b.run()
		defer b.stop()
		f(b)
	})
}

// startBench is a device that runs; the test calls stop.
func startBench(t *testing.T) *bench {
	b := newBench(t, nil)
	b.run()
	return b
}

// user uses the session that the view shows, and releases it some time after the view shows
// another one.
type user struct {
	name    string
	takes   time.Duration
	silent  bool             // it releases only when it is ordered to
	reports func(s *Session) // called before each release; may be nil

	mu   sync.Mutex // guards what follows
	held *Session
	seen []uint64 // instances used
}

// newUser starts a user, which ends with the bench.
func (b *bench) newUser(takes time.Duration) *user {
	u := &user{name: "user", takes: takes}
	go u.run(b.users, b.Device)
	synctest.Wait()
	return u
}

func (u *user) run(ctx context.Context, d *Device) {
	views, unsubscribe := d.Subscribe()
	defer unsubscribe()
	for {
		select {
		case <-ctx.Done():
			u.release()
			return
		case <-views:
			u.follow(d)
		}
	}
}

func (u *user) follow(d *Device) {
	u.mu.Lock()
	held := u.held
	u.mu.Unlock()
	if held == d.View().Session || held != nil && u.silent {
		return
	}
	if held != nil {
		time.Sleep(u.takes)
		u.release()
	}
	if s := d.View().Session; s != nil && s.Acquire(u.name) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.held, u.seen = s, append(u.seen, s.Instance)
	}
}

func (u *user) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held == nil {
		return
	}
	if u.reports != nil {
		u.reports(u.held)
	}
	u.held.Release(u.name)
	u.held = nil
}

// healthy waits until the device is open, at most d, and returns the session.
func (b *bench) healthy(d time.Duration) *Session {
	b.t.Helper()
	synctest.Wait() // until Run has received pending commands
	return b.await(d, func(v View) bool { return v.Session != nil }).Session
}

// await waits for a view.
func (b *bench) await(d time.Duration, ok func(View) bool) View {
	b.t.Helper()
	views, unsubscribe := b.Subscribe()
	defer unsubscribe()
	late := time.After(d)
	for {
		select {
		case <-views:
			if v := b.View(); ok(v) {
				return v
			}
		case <-late:
			b.t.Fatalf("after %s: %+v, %v", d, b.View(), b.Status().State)
		}
	}
}

// wantSteps compares the rungs and reasons of the end of the last recovery.
func (b *bench) wantSteps(want ...qprecovery.Step) {
	b.t.Helper()
	h := b.Status().History
	if len(h) == 0 {
		b.t.Fatal("no recovery")
	}
	got := h[len(h)-1].Steps
	if len(got) < len(want) {
		b.t.Errorf("steps %v, want %v", got, want)
		return
	}
	got = got[len(got)-len(want):]
	for i := range want {
		if got[i].Rung != want[i].Rung || got[i].Reason != want[i].Reason {
			b.t.Errorf("step %d: %v for %v, want %v for %v", i, got[i].Rung, got[i].Reason, want[i].Rung, want[i].Reason)
		}
	}
}

func rung(r qprecovery.Rung, why qprecovery.Reason) qprecovery.Step {
	return qprecovery.Step{Rung: r, Reason: why}
}

// notes returns the notes to the operator.
func (b *bench) notes() (texts []string) {
	for _, e := range b.cfg.Journal.Since(0) {
		if e.Kind == journal.KindNote {
			texts = append(texts, e.Text)
		}
	}
	return texts
}
