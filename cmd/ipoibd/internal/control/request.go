package control

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Request is the body of a POST. A daemon answers with the request itself, with omitted names, or
// what was done, filled in.
type Request interface {
	url() string
	// order checks the request, fills in omitted names, and returns what carries it out. Errors: ErrInvalid,
	// ErrNotAllowed, ErrNotFound.
	order(Daemon) (order, error)
}

// order carries out a request.
type order func(context.Context) error

// requests has a function for each kind of request that returns an empty one.
var requests = []func() Request{
	func() Request { return new(FaultRequest) },
	func() Request { return new(ResetRequest) },
	func() Request { return new(RecoverRequest) },
	func() Request { return new(PingRequest) },
	func() Request { return new(SuspendRequest) },
	func() Request { return new(ResumeRequest) },
	func() Request { return new(ReloadRequest) },
	func() Request { return new(AddRequest) },
	func() Request { return new(RemoveRequest) },
}

// FaultRequest injects a fault.
type FaultRequest struct {
	Kind   string `json:"kind"`             // one of [FaultKinds]
	After  int    `json:"after,omitempty"`  // opportunities to skip before it strikes
	Count  int    `json:"count,omitempty"`  // number of times it strikes; 0 means 1
	Verb   string `json:"verb,omitempty"`   // the verb, for the kinds verb_*; empty: any
	Device string `json:"device,omitempty"` // empty: the only one
}

func (*FaultRequest) url() string { return "/v1/fault" }

func (q *FaultRequest) order(d Daemon) (order, error) {
	kind, unknown := faults.ParseKind(q.Kind)
	switch {
	case unknown != nil:
		return nil, fmt.Errorf("%w: no fault %q; 'ipoibd fault --list' lists them", ErrInvalid, q.Kind)
	case kind >= faults.NumKind && (q.After != 0 || q.Count != 0 || q.Verb != ""):
		return nil, fmt.Errorf("%w: %s takes no after, count or verb", ErrInvalid, q.Kind)
	case q.Verb != "" && !kind.OfVerb():
		return nil, fmt.Errorf("%w: %s takes no verb", ErrInvalid, q.Kind)
	}
	fault := faults.Fault{Kind: kind, After: q.After, Count: q.Count, Verb: q.Verb}
	inject, err := to("device", &q.Device, d.Fleet.Devices, func(dev Device, _ context.Context) error {
		return dev.Inject(fault)
	})
	if err == nil && !d.AllowFaults {
		err = fmt.Errorf("%w: start the daemon with --allow-faults", ErrNotAllowed)
	}
	return inject, err
}

// Scopes of a reset.
const (
	ScopeQP     = "qp"     // an interface's queue pair, in place
	ScopeCQ     = "cq"     // an interface's completion queues and queue pair
	ScopeDevice = "device" // the HCA, for all of its interfaces
)

// ResetRequest resets a queue pair, its completion queues or a device.
type ResetRequest struct {
	Scope     string `json:"scope"`
	Interface string `json:"interface,omitempty"` // for qp and cq; empty: the only one
	Device    string `json:"device,omitempty"`    // for device; empty: the only one
}

func (*ResetRequest) url() string { return "/v1/reset" }

func (q *ResetRequest) order(d Daemon) (order, error) {
	rungs := map[string]qprecovery.Rung{ScopeQP: qprecovery.RungResetQP, ScopeCQ: qprecovery.RungRebuildCQ}
	switch q.Scope {
	case ScopeQP, ScopeCQ:
		if q.Device != "" {
			return nil, fmt.Errorf("%w: reset %s takes an interface, not a device", ErrInvalid, q.Scope)
		}
		return to("interface", &q.Interface, d.Fleet.Interfaces, func(f Interface, ctx context.Context) error {
			return f.Reset(ctx, rungs[q.Scope])
		})
	case ScopeDevice:
		if q.Interface != "" {
			return nil, fmt.Errorf("%w: reset device takes no interface; it affects all interfaces of the device",
				ErrInvalid)
		}
		return to("device", &q.Device, d.Fleet.Devices, Device.Reset)
	}
	return nil, fmt.Errorf("%w: unknown scope %q; use %s, %s or %s",
		ErrInvalid, q.Scope, ScopeQP, ScopeCQ, ScopeDevice)
}

// RecoverRequest retries a device that was given up.
type RecoverRequest struct {
	Device string `json:"device,omitempty"` // empty: the only one
}

func (*RecoverRequest) url() string { return "/v1/recover" }

func (q *RecoverRequest) order(d Daemon) (order, error) {
	return to("device", &q.Device, d.Fleet.Devices, Device.Recover)
}

// SuspendRequest closes all devices. The answer comes when all interfaces have released their
// devices and these are closed.
type SuspendRequest struct{}

func (*SuspendRequest) url() string                   { return "/v1/suspend" }
func (*SuspendRequest) order(d Daemon) (order, error) { return d.Fleet.Suspend, nil }

// ResumeRequest opens all devices again.
type ResumeRequest struct{}

func (*ResumeRequest) url() string                   { return "/v1/resume" }
func (*ResumeRequest) order(d Daemon) (order, error) { return d.Fleet.Resume, nil }

// ReloadRequest applies the configuration file. The answer has what was done.
type ReloadRequest struct{ report.Reload }

func (*ReloadRequest) url() string { return "/v1/reload" }

func (q *ReloadRequest) order(d Daemon) (order, error) {
	if len(q.Devices)+len(q.Interfaces) > 0 {
		return nil, fmt.Errorf("%w: reload takes no devices or interfaces; it reads the configuration file", ErrInvalid)
	}
	return func(ctx context.Context) (err error) {
		q.Reload, err = d.Config.Reload(ctx)
		return err
	}, nil
}

// AddRequest adds an interface at run time, or replaces one that was added so. Its body is a JSON
// object with the fields that an interface has in a configuration file, and its answer a
// [report.Reload].
type AddRequest struct {
	json.RawMessage
	// Namespace is the network namespace to which the path "netns" of the interface leads, for a
	// daemon that may not open it there; nil: it opens it itself. It is the sender's, who closes it.
	Namespace *os.File
}

func (*AddRequest) url() string { return "/v1/interfaces" }

func (q *AddRequest) order(d Daemon) (_ order, err error) {
	if len(q.RawMessage) == 0 {
		return nil, fmt.Errorf("%w: the request is empty; send a JSON object with the fields of the interface", ErrInvalid)
	}
	q.RawMessage, err = json.Marshal(q.RawMessage) // without white space
	return func(ctx context.Context) error {
		done, err := d.Config.Add(ctx, q.RawMessage, q.Namespace)
		if err == nil {
			q.RawMessage, err = json.Marshal(done)
		}
		return err
	}, err
}

// RemoveRequest removes an interface that was added at run time, and deletes it. The answer has what
// was done.
type RemoveRequest struct {
	Interface string `json:"interface"`
	report.Reload
}

func (*RemoveRequest) url() string { return "/v1/interfaces/remove" }

// order leaves it to the daemon to find the interface, which may be being added.
func (q *RemoveRequest) order(d Daemon) (order, error) {
	switch {
	case q.Interface == "":
		return nil, fmt.Errorf("%w: name the interface to remove", ErrInvalid)
	case len(q.Devices)+len(q.Interfaces) > 0:
		return nil, fmt.Errorf("%w: remove takes the name of one interface", ErrInvalid)
	}
	return func(ctx context.Context) (err error) {
		q.Reload, err = d.Config.Remove(ctx, q.Interface)
		return err
	}, nil
}

// to returns an order to the device or interface of a name. One that has been removed in the meantime is not found
// either.
func to[T interface{ Name() string }](
	what string, name *string, have func() []T, do func(T, context.Context) error,
) (order, error) {
	one, err := pick(what, name, have())
	return func(ctx context.Context) error {
		err := do(one, ctx)
		if _, gone := pick(what, name, have()); err != nil && gone != nil {
			return gone
		}
		return err
	}, err
}

// pick returns the device or interface of a name. If none is given, it returns the only one, and fills in its name.
func pick[T interface{ Name() string }](what string, name *string, have []T) (one T, err error) {
	var names []string
	for _, one := range have {
		if names = append(names, one.Name()); *name == one.Name() {
			return one, nil
		}
	}
	switch {
	case *name != "":
		return one, fmt.Errorf("%w: no %s %q", ErrNotFound, what, *name)
	case len(have) == 0:
		return one, fmt.Errorf("%w: there is no %s", ErrNotFound, what)
	case len(have) > 1:
		return one, fmt.Errorf("%[1]w: there are several %[2]ss; choose one with --%[2]s: %[3]s",
			ErrInvalid, what, strings.Join(names, ", "))
	}
	*name = names[0]
	return have[0], nil
}
