package control

import (
	"context"
	"errors"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// Daemon carries out the requests of the control socket. Several goroutines may call its
// methods at the same time. A method returns once the request has been accepted (Suspend:
// once it is complete), and at the latest when ctx ends. The names in a request are always
// among those of [Daemon.Names].
type Daemon interface {
	Names() Names
	Status() report.Status
	Journal() *journal.Journal
	Fault(FaultRequest) error
	Reset(context.Context, ResetRequest) error
	Recover(context.Context, RecoverRequest) error
	Suspend(context.Context) error
	Resume(context.Context) error
}

// Names are the configured names.
type Names struct{ Devices, Interfaces []string }

// Refusals, with the HTTP statuses of their answers. Any other error means that the request
// conflicts with the current state, and is a 409.
var (
	ErrInvalid     = errors.New("bad request")             // 400
	ErrNotAllowed  = errors.New("not allowed")             // 403
	ErrNotFound    = errors.New("not found")               // 404
	ErrUnavailable = errors.New("temporarily unavailable") // 503
)
