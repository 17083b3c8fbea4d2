package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// limit bounds every wait in real time. It is ten times the usual duration.
const limit = 10 * time.Second

// fake is a daemon with one device and one interface that records its orders.
type fake struct {
	devices, ifaces []string
	forbid          bool // faults are not allowed

	log    *journal.Journal
	reload report.Reload
	work   func(ctx context.Context) error // carries out an order, unless it is nil

	block    int          // bytes of a write of a capture
	captures atomic.Int32 // running

	mu        sync.Mutex
	err       error // answer to every order
	orders    []string
	namespace os.FileInfo // of the last interface to add; nil: none was passed
}

func newFake() *fake {
	return &fake{devices: []string{"soft"}, ifaces: []string{"ib0"}, log: journal.New()}
}

func (f *fake) daemon() Daemon {
	return Daemon{Status: sample, Journal: f.log, Fleet: f, Config: f, HandOver: f.HandOver, AllowFaults: !f.forbid}
}

// fakeDevice and fakeInterface record the orders that name them.
type (
	fakeDevice struct {
		f    *fake
		name string
	}
	fakeInterface struct {
		f    *fake
		name string
	}
)

func (f *fake) Devices() (all []Device) {
	for _, name := range f.devices {
		all = append(all, fakeDevice{f, name})
	}
	return all
}

func (f *fake) Interfaces() (all []Interface) {
	for _, name := range f.ifaces {
		all = append(all, fakeInterface{f, name})
	}
	return all
}

func (d fakeDevice) Name() string                      { return d.name }
func (d fakeDevice) Reset(ctx context.Context) error   { return d.f.take(ctx, "reset", d.name) }
func (d fakeDevice) Recover(ctx context.Context) error { return d.f.take(ctx, "recover", d.name) }

func (d fakeDevice) Inject(fault faults.Fault) error {
	return d.f.take(context.Background(), "fault "+d.name, fault)
}

func (i fakeInterface) Name() string { return i.name }

func (i fakeInterface) Reset(ctx context.Context, rung qprecovery.Rung) error {
	return i.f.take(ctx, "reset", i.name+" "+rung.String())
}

func (i fakeInterface) Ping(ctx context.Context, target string, _ int) (*report.Echo, error) {
	return nil, i.f.take(ctx, "ping", target)
}

func (f *fake) Suspend(ctx context.Context) error { return f.take(ctx, "suspend", SuspendRequest{}) }

func (f *fake) Resume(ctx context.Context) error { return f.take(ctx, "resume", ResumeRequest{}) }

// Capture writes blocks until ctx ends, and then a last one. The packets and their number are
// made up.
func (i fakeInterface) Capture(ctx context.Context, _ capture.Request, out capture.Output) (capture.Summary, error) {
	f := i.f
	f.captures.Add(1)
	defer f.captures.Add(-1)
	for ctx.Err() == nil {
		if _, err := out.Write(make([]byte, f.block)); err != nil {
			return capture.Summary{}, err
		}
		if err := out.Flush(); err != nil {
			return capture.Summary{}, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	_, err := io.WriteString(out, "end")
	return capture.Summary{Packets: 3, Lost: 2}, err
}

func (f *fake) Reload(ctx context.Context) (report.Reload, error) {
	return f.reload, f.take(ctx, "reload", "")
}

func (f *fake) Add(ctx context.Context, definition []byte, namespace *os.File) (report.Reload, error) {
	f.mu.Lock()
	f.namespace, _ = namespace.Stat() // nil: an error
	f.mu.Unlock()
	return f.reload, f.take(ctx, "add", string(definition))
}

func (f *fake) Remove(ctx context.Context, name string) (report.Reload, error) {
	return f.reload, f.take(ctx, "remove", name)
}

func (f *fake) HandOver(accept func() (*net.UnixConn, error)) error {
	if err := f.take(context.Background(), "hand-over", nil); err != nil {
		return err
	}
	conn, err := accept()
	if err == nil {
		err = conn.Close()
	}
	return err
}

func (f *fake) take(ctx context.Context, name string, q any) error {
	f.mu.Lock()
	f.orders = append(f.orders, fmt.Sprintf("%s %+v", name, q))
	err := f.err
	f.mu.Unlock()
	if f.work != nil {
		return f.work(ctx)
	}
	return err
}

// passed returns the namespace of the last interface to add. The race detector does not see that recvmsg
// follows sendmsg, so the mutex is needed although the answer has arrived.
func (f *fake) passed() os.FileInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.namespace
}

// taken returns the orders so far and forgets them.
func (f *fake) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.orders
	f.orders = nil
	return out
}

// serve starts a server of a daemon that ends with the test, and checks that it leaves nothing
// behind.
func serve(t *testing.T, f *fake) (path string) {
	t.Helper()
	goroutines := runtime.NumGoroutine()
	path, stop := start(t, f)
	t.Cleanup(func() {
		stop()
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket left behind: %v", err)
		}
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	})
	return path
}

// start starts a server of a daemon. Stop ends it and waits for that; further calls do nothing.
func start(t *testing.T, f *fake) (path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sub", "c.sock")
	s, err := Listen(path, f.daemon())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	return path, sync.OnceFunc(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// eventually waits for an effect of other goroutines.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
