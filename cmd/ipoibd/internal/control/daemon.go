package control

import (
	"context"
	"errors"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// Daemon is what the control socket speaks for. Its methods are called from any
// goroutine, several at once. An order returns once it is taken up, a suspension
// when it is done, both at the latest when ctx ends. The names in a request
// are those of [Daemon.Names]; none is empty.
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

// Names of what there is, from the configuration.
type Names struct{ Devices, Interfaces []string }

// Refusals, with the HTTP statuses of their answers. Any other error means that the order does
// not fit the present state, and is a 409.
var (
	ErrInvalid     = errors.New("bad request")           // 400
	ErrNotAllowed  = errors.New("not allowed")           // 403
	ErrNotFound    = errors.New("not found")             // 404
	ErrUnavailable = errors.New("not available for now") // 503
)
