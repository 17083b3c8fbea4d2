package control

import (
	"context"
	"errors"
	"net"
	"os"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Daemon is what the control socket shows and controls. Several goroutines may use all of it at the same time.
type Daemon struct {
	Status  func() report.Status
	Journal *journal.Journal
	Fleet   Fleet
	Config  Config

	AllowFaults bool // faults may be injected
	// HandOver hands everything over to another process of the same user, over the connection that
	// accept returns; see package handover. After an error before accept, nothing has happened. It
	// logs how the rest has ended.
	HandOver func(accept func() (*net.UnixConn, error)) error
}

// Fleet is the devices and interfaces, in the order of the configuration. Suspend and Resume return once they are
// complete, any other order to the fleet and its members once it has been accepted; each returns at the latest when ctx
// ends.
type Fleet interface {
	Devices() []Device
	Interfaces() []Interface
	Suspend(context.Context) error
	Resume(context.Context) error
}

// Device is a device that orders name.
type Device interface {
	Name() string
	Reset(context.Context) error
	Recover(context.Context) error
	// Inject injects a fault into the device, or into one of its interfaces.
	Inject(faults.Fault) error
}

// Interface is an interface that orders name.
type Interface interface {
	Name() string
	Reset(context.Context, qprecovery.Rung) error
	// Ping returns nil if there is no answer before ctx ends.
	Ping(ctx context.Context, target string, size int) (*report.Echo, error)
	// Capture writes a capture file until ctx ends or the capture does; see [capture.Run]. Its errors come from out.
	Capture(ctx context.Context, q capture.Request, out capture.Output) (capture.Summary, error)
}

// Config is the configuration in effect. Its methods return once the change is complete, and at the latest when ctx
// ends.
type Config interface {
	// Reload applies the configuration file as it is now, and says what it has done. After an
	// error, nothing has changed; config.Mistakes are mistakes in the file.
	Reload(context.Context) (report.Reload, error)
	// Add adds an interface at run time, or replaces one that was added so: a JSON object with the
	// fields of an interface in a configuration file. namespace is the one to which its path leads, or nil;
	// the caller closes it afterwards. Remove removes such an interface, after changes
	// under way, or returns ErrNotFound. Their results and other errors are as for Reload.
	Add(ctx context.Context, definition []byte, namespace *os.File) (report.Reload, error)
	Remove(ctx context.Context, name string) (report.Reload, error)
}

// Refusals, with the HTTP statuses of their answers. Any other error means that the request
// conflicts with the current state, and is a 409.
var (
	ErrInvalid     = errors.New("bad request")             // 400
	ErrNotAllowed  = errors.New("not allowed")             // 403
	ErrNotFound    = errors.New("not found")               // 404
	ErrMistake     = errors.New("mistake")                 // 422: in the configuration file, or in an interface to add
	ErrUnavailable = errors.New("temporarily unavailable") // 503
)
