package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// fake is a daemon that records its orders.
type fake struct {
	ifaces []string
	log    *journal.Journal
	status report.Status
	reload report.Reload
	err    error // answer to every order
	echo   func(size int) *report.Echo

	mu     sync.Mutex
	orders []string
}

func newFake() *fake {
	return &fake{ifaces: []string{"ib0"}, log: journal.New()}
}

// fakeDevice and fakeInterface record the orders that name them.
type (
	fakeDevice    struct{ f *fake }
	fakeInterface struct {
		f    *fake
		name string
	}
)

func (f *fake) Devices() []control.Device { return []control.Device{fakeDevice{f}} }

func (f *fake) Interfaces() (all []control.Interface) {
	for _, name := range f.ifaces {
		all = append(all, fakeInterface{f, name})
	}
	return all
}

func (fakeDevice) Name() string                    { return "soft" }
func (d fakeDevice) Reset(context.Context) error   { return d.f.take("reset", "soft") }
func (d fakeDevice) Recover(context.Context) error { return d.f.take("recover", "soft") }
func (d fakeDevice) Inject(f faults.Fault) error   { return d.f.take("fault soft", f) }

func (i fakeInterface) Name() string { return i.name }

func (i fakeInterface) Reset(_ context.Context, rung qprecovery.Rung) error {
	return i.f.take("reset", i.name+" "+rung.String())
}

func (f *fake) Status() (s report.Status) {
	f.change(func() { s = f.status })
	return s
}

// change changes the daemon while it is served. (The race detector does not see that a request over a
// socket orders a write before it and a read after it.)
func (f *fake) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

func (i fakeInterface) Ping(_ context.Context, target string, size int) (*report.Echo, error) {
	return i.f.echo(size), i.f.take("ping", target)
}

func (f *fake) Suspend(context.Context) error { return f.take("suspend", "") }

func (i fakeInterface) Capture(_ context.Context, q capture.Request, out capture.Output) (capture.Summary, error) {
	_, err := fmt.Fprintf(out, "file of %+v", q)
	return capture.Summary{Packets: 3, Lost: 2}, errors.Join(err, i.f.take("capture", q))
}

func (f *fake) Resume(context.Context) error { return f.take("resume", "") }

func (f *fake) Reload(context.Context) (report.Reload, error) {
	err := f.take("reload", "")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reload, err
}

func (f *fake) Add(_ context.Context, definition []byte, _ *os.File) (report.Reload, error) {
	return f.reload, f.take("add", string(definition))
}

func (f *fake) Remove(_ context.Context, name string) (report.Reload, error) {
	return f.reload, f.take("remove", name)
}

func (f *fake) take(name string, q any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, fmt.Sprintf("%s %+v", name, q))
	return f.err
}

// taken returns the orders so far and forgets them.
func (f *fake) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.orders
	f.orders = nil
	return out
}

// serve starts a server of a daemon that ends with stop, or with the test.
func serve(t *testing.T, f *fake) (path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "c.sock")
	s, err := control.Listen(path, control.Daemon{
		Status: f.Status, Journal: f.log, Fleet: f, Config: f, AllowFaults: true,
		HandOver: func(func() (*net.UnixConn, error)) error { return f.take("hand-over", nil) },
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	stop = sync.OnceFunc(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return path, stop
}

// ipoibd runs a command and returns its output.
func ipoibd(t *testing.T, args ...string) (out, errOut string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := rootCommand()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}
