package power

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"ipoibd/link/kernel/capsule"
)

// watched is a running watcher. Its hooks report their calls, and return when the test lets
// them.
type watched struct {
	t      *testing.T
	called chan string
	let    chan error
	log    lockedBuffer
	lock   *Inhibitor
	cancel context.CancelFunc
	ended  chan struct{}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), text)
}

// watch runs a watcher until the test ends, and then looks for leaks.
func watch(t *testing.T) *watched {
	t.Helper()
	return watchWith(t, &Inhibitor{})
}

// watchWith is watch for a process that has an inhibitor.
func watchWith(t *testing.T, lock *Inhibitor) *watched {
	t.Helper()
	before := inUse(t)
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{t: t, lock: lock, called: make(chan string, 8), let: make(chan error), cancel: cancel, ended: make(chan struct{})}
	go func() {
		Watch(ctx, w.hooks(), lock, slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		close(w.ended)
	}()
	t.Cleanup(func() {
		w.stop()
		before.check(t)
	})
	return w
}

func (w *watched) hooks() Hooks {
	hook := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			w.called <- name
			select {
			case err := <-w.let:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return Hooks{Suspend: hook("suspend"), Resume: hook("resume"), Stop: hook("stop")}
}

// stop ends Watch. It is idempotent.
func (w *watched) stop() {
	w.cancel()
	select {
	case <-w.ended:
	case <-time.After(ample):
		w.t.Errorf("did not end within %s", ample)
	}
}

// expect waits for a hook to be called.
func (w *watched) expect(name string) {
	w.t.Helper()
	select {
	case got := <-w.called:
		if got != name {
			w.t.Fatalf("%s was called, want %s", got, name)
		}
	case <-time.After(ample):
		w.t.Fatalf("%s was not called within %s", name, ample)
	}
}

// finish lets the running hook return.
func (w *watched) finish(err error) {
	w.t.Helper()
	select {
	case w.let <- err:
	case <-time.After(ample):
		w.t.Fatal("no hook waits to return")
	}
}

// none fails the test if a hook is called within 200 ms.
func (w *watched) none() {
	w.t.Helper()
	select {
	case got := <-w.called:
		w.t.Fatalf("%s was called", got)
	case <-time.After(200 * time.Millisecond):
	}
}

// onBus starts a bus, a logind that waits a minute, and a watcher, and waits until the
// watcher holds an inhibitor.
func onBus(t *testing.T) (*busDaemon, *fakeLogind, *watched) {
	t.Helper()
	b := newBus(t)
	b.start()
	f := startLogind(t, time.Minute)
	w := watch(t)
	f.waitLocks(1)
	return b, f, w
}

// The inhibitor is held while Suspend runs and released afterwards. On wake-up another one
// is taken before Resume is called. This also holds when it is repeated.
func TestR26SleepWaitsForSuspend(t *testing.T) {
	_, f, w := onBus(t)
	for range 5 {
		f.sleep(true)
		w.expect("suspend")
		if n := f.holders(); n != 1 {
			t.Fatalf("%d watchers hold inhibitors while Suspend runs, want 1", n)
		}
		w.finish(errors.New("the device is stubborn")) // it sleeps anyway
		f.waitLocks(0)
		f.sleep(false)
		w.expect("resume")
		if n := f.holders(); n != 1 {
			t.Fatalf("%d watchers hold inhibitors when Resume is called, want 1", n)
		}
		w.finish(nil)
	}
	w.none()
	if n := w.log.count("the device is stubborn"); n != 5 {
		t.Errorf("the error is in the log %d times, want 5", n)
	}
}

// The context of a Suspend that hangs ends, and the system sleeps in time.
func TestR26SleepDoesNotWaitForEver(t *testing.T) {
	newBus(t).start()
	const limit = time.Second
	f := startLogind(t, limit)
	suspended, resumed := make(chan time.Duration, 1), make(chan struct{})
	before := inUse(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	hooks := Hooks{
		Suspend: func(ctx context.Context) error {
			at, _ := ctx.Deadline()
			suspended <- time.Until(at)
			<-ctx.Done()
			return ctx.Err()
		},
		Resume: func(context.Context) error { close(resumed); return nil },
		Stop:   func(context.Context) error { return nil },
	}
	go func() {
		Watch(ctx, hooks, &Inhibitor{}, slog.New(slog.DiscardHandler))
		close(ended)
	}()
	f.waitLocks(1)

	start := time.Now()
	f.sleep(true)
	if left := <-suspended; left > limit*8/10 {
		t.Errorf("Suspend has %s, want at most %s", left, limit*8/10)
	}
	f.waitLocks(0)
	took := time.Since(start)
	t.Logf("logind grants %s, the inhibitor was released after %s", limit, took)
	if took < limit*8/10 {
		t.Errorf("released after %s, before the end of Suspend's time", took)
	}
	f.sleep(false)
	f.waitLocks(1)
	<-resumed
	cancel()
	<-ended
	f.waitLocks(0)
	before.check(t)
}

func TestR26ShutdownWaitsForStop(t *testing.T) {
	_, f, w := onBus(t)
	f.shutdown()
	w.expect("stop")
	if n := f.holders(); n != 1 {
		t.Errorf("%d watchers hold inhibitors while Stop runs, want 1", n)
	}
	w.finish(nil)
	f.waitLocks(0)
	w.none()
}

// At the end of the daemon, Watch cancels the running hook, waits for it, and releases the
// inhibitor.
func TestR26EndWhileAHookRuns(t *testing.T) {
	_, f, w := onBus(t)
	f.sleep(true)
	w.expect("suspend")
	w.stop()
	f.waitLocks(0)
}

// logind restarts, before a sleep and in the middle of one; the bus stays.
func TestR26LogindRestarts(t *testing.T) {
	_, f, w := onBus(t)
	f.stop()
	f.waitLocks(0)
	f = startLogind(t, time.Minute)
	f.waitLocks(1)
	w.none()

	f.sleep(true)
	w.expect("suspend")
	w.finish(nil)
	f.waitLocks(0)
	f.stop()
	f = startLogind(t, time.Minute) // which does not know of the sleep
	w.expect("resume")
	f.waitLocks(1)
	w.finish(nil)
	if n := w.log.count("no notice of sleep"); n != 2 {
		t.Errorf("the loss is in the log %d times, want 2", n)
	}
}

// A daemon that starts while the system prepares for sleep suspends too.
func TestR26StartsWhileTheSystemPrepares(t *testing.T) {
	newBus(t).start()
	f := startLogind(t, time.Minute)
	f.sleeps.Store(true)
	w := watch(t)
	w.expect("suspend")
	w.finish(nil)
	f.sleep(false)
	f.waitLocks(1)
	w.expect("resume")
	w.finish(nil)
}

// If logind answers everything but Inhibit, the watcher still follows its signals.
func TestR26InhibitIsNotAnswered(t *testing.T) {
	newBus(t).start()
	f := startLogind(t, time.Minute)
	f.mute.Store(true)
	w := watch(t)
	eventually(t, "the watcher gives up the call", func() bool { return w.log.count("does not wait for this daemon") == 1 })
	f.sleep(true)
	w.expect("suspend")
	w.finish(nil)
	f.mute.Store(false)
	f.sleep(false)
	f.waitLocks(1)
	w.expect("resume")
	w.finish(nil)
}

// The watcher asks a logind that does not answer again, until it has recovered.
func TestR27LogindStalls(t *testing.T) {
	newBus(t).start()
	f := startLogind(t, time.Minute)
	f.silent.Store(true)
	w := watch(t)
	eventually(t, "the watcher gives up the call", func() bool { return w.log.count("no answer within 5s") == 1 })
	f.silent.Store(false)
	f.waitLocks(1)
	w.none()
}

// Any user may send signals directly to a client of the bus, with descriptors in them. The
// watcher ignores these signals, and receives no descriptors.
func TestR26SignalsOfOthers(t *testing.T) {
	_, f, w := onBus(t)
	stranger, err := dbus.ConnectSystemBus()
	must(t, err)
	defer stranger.Close()
	before := inUse(t)
	var names []string
	must(t, stranger.BusObject().Call(busName+".ListNames", 0).Store(&names))
	for _, name := range names {
		if !strings.HasPrefix(name, ":") || name == stranger.Names()[0] || name == f.conn.Names()[0] {
			continue
		}
		for range 20 {
			forge(stranger, name, prepareForSleep, true)
			forge(stranger, name, prepareForShutdown, true, dbus.UnixFD(0))
			forge(stranger, name, nameOwnerChanged, login, f.conn.Names()[0], "")
		}
	}
	w.none()
	before.check(t)
	f.sleep(true) // a signal of logind itself
	w.expect("suspend")
}

// While the watcher waits for an inhibitor, it has a connection that can receive descriptors. It keeps none that others
// send to it, and no form of a message ends it.
func TestR26DescriptorsOfOthers(t *testing.T) {
	newBus(t).start()
	f := startLogind(t, time.Minute)
	f.mute.Store(true)
	stranger, err := dbus.ConnectSystemBus()
	must(t, err)
	defer stranger.Close()
	forged, err := os.Create(filepath.Join(t.TempDir(), "forged"))
	must(t, err)
	defer forged.Close()
	fd := dbus.UnixFD(forged.Fd())
	w := watch(t)
	sent := map[string]int{}
	eventually(t, "the watcher gives up the call", func() bool {
		var names []string
		must(t, stranger.BusObject().Call(busName+".ListNames", 0).Store(&names))
		for _, name := range names {
			if !strings.HasPrefix(name, ":") || name == stranger.Names()[0] || name == f.conn.Names()[0] || sent[name] == 20 {
				continue
			}
			sent[name]++
			forge(stranger, name, prepareForSleep, fd, fd)
			forge(stranger, name, prepareForSleep, []dbus.UnixFD{fd, fd})
			forge(stranger, name, prepareForSleep, dbus.MakeVariant(fd))
		}
		return w.log.count("does not wait for this daemon") == 1
	})
	if len(sent) < 2 {
		t.Errorf("sent forged signals to %v, want two connections of the watcher", sent)
	}
	eventually(t, "the watcher has no descriptor of the stranger", func() bool { return copies(t, forged) == 1 })
	f.sleep(true)
	w.expect("suspend")
	w.finish(nil)
	f.mute.Store(false)
	f.sleep(false)
	f.waitLocks(1)
}

// copies returns how many descriptors of this process refer to a file.
func copies(t *testing.T, file *os.File) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range list {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && target == file.Name() {
			n++
		}
	}
	return n
}

func forge(conn *dbus.Conn, dest, member string, body ...any) {
	face := manager
	if member == nameOwnerChanged {
		face = busName
	}
	conn.Send(&dbus.Message{
		Type: dbus.TypeSignal,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(dest),
			dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath(loginPath)),
			dbus.FieldInterface:   dbus.MakeVariant(face),
			dbus.FieldMember:      dbus.MakeVariant(member),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(body...)),
		},
		Body: body,
	}, nil)
}

// The bus dies while the system sleeps, so the wake-up is never announced. The daemon resumes
// its service, and takes an inhibitor when the bus is back.
func TestR27BusDiesInSleep(t *testing.T) {
	b, f, w := onBus(t)
	f.sleep(true)
	w.expect("suspend")
	w.finish(nil)
	f.waitLocks(0)
	b.stop()
	w.expect("resume")
	f.stop()
	b.start()
	startLogind(t, time.Minute).waitLocks(1)
	w.finish(nil)
}

// When the bus dies while the system is awake, the watcher releases its inhibitor, and takes
// another when the bus is back.
func TestR27BusDies(t *testing.T) {
	b, f, w := onBus(t)
	b.stop()
	f.waitLocks(0)
	f.stop()
	b.start()
	startLogind(t, time.Minute).waitLocks(1)
	w.none()
}

// No bus, then a bus without logind, then logind: one line reports that it is missing, and one
// that it was found.
func TestR27NoBus(t *testing.T) {
	b := newBus(t)
	w := watch(t)
	eventually(t, "the loss is logged", func() bool { return w.log.count("no notice of sleep") == 1 })
	if w.log.count("level=DEBUG") != 1 {
		t.Errorf("a machine without a system bus is reported above the level DEBUG:\n%s", w.log.buf.String())
	}
	time.Sleep(retryEvery * 3 / 2)
	b.start()
	time.Sleep(2 * retryEvery)
	f := startLogind(t, time.Minute)
	f.waitLocks(1)
	w.none()
	if n := w.log.count("\n"); n != 2 {
		t.Errorf("%d lines in the log, want one for the loss and one for the find:\n%s", n, w.log.buf.String())
	}
}

// Other addresses of the bus are refused with an error that names them.
func TestUnsupportedAddress(t *testing.T) {
	t.Setenv(addressEnv, "tcp:host=127.0.0.1")
	w := watch(t)
	eventually(t, "the address is logged", func() bool { return w.log.count("tcp:host=127.0.0.1") == 1 })
}

// The system waits for one of two processes also while one continues the daemon of the other (R26), even if
// it prepares for sleep just then.
func TestR26InhibitorIsHandedOver(t *testing.T) {
	for _, sleeps := range []bool{false, true} {
		_, f, w := onBus(t)
		eventually(t, "the watcher has the inhibitor", w.lock.held)
		c := capsule.NewWriter()
		w.lock.Export(c)
		parts, fds, err := c.Contents()
		if err != nil || len(fds) == 0 {
			t.Fatalf("%v, %v, %v", parts, fds, err)
		}
		to, err := capsule.NewReader(parts, fds)
		if err != nil {
			t.Fatal(err)
		}
		if sleeps {
			f.sleep(true)
			w.expect("suspend")
		}
		w.stop()
		f.waitLocks(1)
		var inherited Inhibitor
		inherited.Import(to)
		heir := watchWith(t, &inherited)
		if !sleeps {
			heir.none()
			f.waitLocks(1)
			f.sleep(true)
		}
		heir.expect("suspend")
		f.waitLocks(1)
		heir.finish(nil)
		f.waitLocks(0)
		f.sleep(false)
		heir.expect("resume")
		heir.finish(nil)
		f.waitLocks(1)
		heir.stop()
		f.waitLocks(0)
	}
}
