package device

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	addr1 = netip.MustParseAddr("10.0.0.1")
)

// bench is a device on a fabric, with what its Opener opened last.
type bench struct {
	*Device
	fabric *memfabric.Fabric
	mu     sync.Mutex
	port   *memfabric.Port
	absent bool
	stop   func()
}

var errAbsent = errors.New("not plugged in")

func (b *bench) open(context.Context) (hca.Device, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.absent {
		return nil, errAbsent
	}
	b.port = b.fabric.Attach("eth0", 1500, addr1)
	return soft.Open(soft.Config{Name: "soft", Transport: b.port})
}

func (b *bench) plug(in bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.absent = !in
	if !in {
		b.port.Remove()
	}
}

func startBench(t *testing.T) *bench {
	b := &bench{fabric: memfabric.New(1)}
	b.Device = New(Config{Name: "soft", Open: b.open, Log: quiet})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	b.stop = func() { cancel(); <-done; _ = b.fabric.Close() }
	synctest.Wait()
	return b
}

func TestViewFollowsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t)
		defer b.stop()
		if v := b.View(); v.Session == nil || v.Ports[0].State != hca.PortActive {
			t.Fatalf("after open: %+v", v)
		}
		changed, unsubscribe := b.Subscribe()
		defer unsubscribe()
		<-changed // the first value is there at once
		b.port.SetUp(false)
		<-changed
		if st := b.View().Ports[0].State; st != hca.PortDown {
			t.Errorf("link down: port is %s", st)
		}
		b.port.SetUp(true)
		<-changed
		if st := b.View().Ports[0].State; st != hca.PortActive {
			t.Errorf("link up: port is %s", st)
		}
	})
}

// A session ends at once for those who look, but its HCA is closed only when
// its users have let go; then the device is opened anew.
func TestRemovalWaitsForUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t)
		defer b.stop()
		s := b.View().Session
		if !s.Acquire() {
			t.Fatal("cannot use an open session")
		}
		b.plug(false)
		synctest.Wait()
		if v := b.View(); v.Session != nil || !errors.Is(v.Err, hca.ErrIO) {
			t.Fatalf("after removal: %+v", v)
		}
		if s.Acquire() {
			t.Error("a session that is over was acquired")
		}
		time.Sleep(time.Minute)
		if b.Opens() != 1 {
			t.Error("opened anew while the old session is in use")
		}
		s.Release()
		time.Sleep(time.Minute)
		if v := b.View(); !errors.Is(v.Err, errAbsent) {
			t.Errorf("while absent: %+v", v)
		}
		b.plug(true)
		time.Sleep(2 * retryOpen)
		if v := b.View(); v.Session == nil || v.Session == s || v.Session.Instance != 2 {
			t.Errorf("after return: %+v", v)
		}
	})
}

// A device that is lost as soon as it is open is opened once a second, no more,
// and a reason that stays the same is published once.
func TestFailingDeviceDoesNotSpin(t *testing.T) {
	for name, lose := range map[string]func(b *bench){
		"lost at once": func(b *bench) { b.port.Remove() },
		"cannot open":  func(b *bench) { b.plug(false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bench{fabric: memfabric.New(1)}
				opens := 0
				b.Device = New(Config{Name: "soft", Log: quiet, Open: func(ctx context.Context) (hca.Device, error) {
					opens++
					dev, err := b.open(ctx)
					lose(b)
					return dev, err
				}})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); b.Run(ctx) }()
				time.Sleep(time.Minute)
				cancel()
				<-done
				if opens < 59 || opens > 61 {
					t.Errorf("opened %d times in a minute", opens)
				}
				if b.View().Session != nil {
					t.Error("a session after the end")
				}
				_ = b.fabric.Close()
			})
		})
	}
}

// The end of the context ends Run while the opener waits.
func TestEndWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Name: "soft", Log: quiet, Open: func(ctx context.Context) (hca.Device, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		synctest.Wait()
		cancel()
		<-done
		if err := d.View().Err; !errors.Is(err, errNotOpen) {
			t.Errorf("reason is %v", err)
		}
	})
}
