package control

import (
	"context"
	"errors"
	"net"
	"os"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// Daemon carries out the requests of the control socket. Several goroutines may call its
// methods at the same time. A method returns once the request has been accepted (Suspend,
// Reload, Add and Remove: once it is complete), and at the latest when ctx ends. The names in a request,
// except for the name of an interface to remove, are always among [Daemon.Names].
type Daemon interface {
	Names() Names
	Status() report.Status
	Journal() *journal.Journal
	Fault(FaultRequest) error
	Reset(context.Context, ResetRequest) error
	// Ping returns nil if there is no answer before ctx ends.
	Ping(context.Context, PingRequest) (*PingReply, error)
	Recover(context.Context, RecoverRequest) error
	Suspend(context.Context) error
	Resume(context.Context) error
	// Capture writes a capture file of an interface until ctx ends or the capture does; see
	// [capture.Run]. Its errors come from out.
	Capture(ctx context.Context, q capture.Request, out capture.Output) (capture.Summary, error)
	// Reload applies the configuration file as it is now, and says what it has done. After an
	// error, nothing has changed; config.Mistakes are mistakes in the file.
	Reload(context.Context) (report.Reload, error)
	// Add adds an interface at run time, or replaces one that was added so: a JSON object with the
	// fields of an interface in a configuration file. namespace is the one to which its path leads, or nil;
	// the caller closes it afterwards. Remove removes such an interface, after changes
	// under way, or returns ErrNotFound. Their results and other errors are as for Reload.
	Add(ctx context.Context, definition []byte, namespace *os.File) (report.Reload, error)
	Remove(ctx context.Context, name string) (report.Reload, error)
	// HandOver hands everything over to another process of the same user, over the connection that
	// accept returns; see package handover. After an error before accept, nothing has happened. It
	// logs how the rest has ended.
	HandOver(accept func() (*net.UnixConn, error)) error
}

// Names are the configured names.
type Names struct{ Devices, Interfaces []string }

// Refusals, with the HTTP statuses of their answers. Any other error means that the request
// conflicts with the current state, and is a 409.
var (
	ErrInvalid     = errors.New("bad request")             // 400
	ErrNotAllowed  = errors.New("not allowed")             // 403
	ErrNotFound    = errors.New("not found")               // 404
	ErrMistake     = errors.New("mistake")                 // 422: in the configuration file, or in an interface to add
	ErrUnavailable = errors.New("temporarily unavailable") // 503
)
