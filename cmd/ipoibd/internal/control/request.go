package control

import (
	"fmt"
	"slices"
	"strings"

	"ipoibd/hca/faults"
)

// Scopes of a reset.
const (
	ScopeQP     = "qp"     // an interface's queue pair, in place
	ScopeCQ     = "cq"     // an interface's completion queues and queue pair
	ScopeDevice = "device" // the HCA, for all of its interfaces
)

// FaultRequest orders a fault (POST /v1/fault).
type FaultRequest struct {
	Kind   string `json:"kind"`             // one of [FaultKinds]
	After  int    `json:"after,omitempty"`  // occasions that pass before it strikes
	Count  int    `json:"count,omitempty"`  // occasions that it strikes; 1 when 0
	Verb   string `json:"verb,omitempty"`   // the verb, for verb_hangs and verb_hangs_forever; empty: any
	Device string `json:"device,omitempty"` // empty: the only one
}

// ResetRequest orders a reset (POST /v1/reset).
type ResetRequest struct {
	Scope     string `json:"scope"`               // qp, cq or device
	Interface string `json:"interface,omitempty"` // of qp and cq; empty: the only one
	Device    string `json:"device,omitempty"`    // of device; empty: the only one
}

// RecoverRequest orders another try of a device that was given up (POST /v1/recover).
type RecoverRequest struct {
	Device string `json:"device,omitempty"` // empty: the only one
}

// bare is the body of an order without parameters.
type bare struct{}

func (*bare) resolve(Names) error { return nil }

func (q *FaultRequest) resolve(n Names) (err error) {
	kind, ok := findKind(q.Kind)
	ofDevice, unknown := faults.ParseKind(q.Kind)
	switch {
	case !ok:
		return fmt.Errorf("%w: no fault %q; 'ipoibd fault --list' has them", ErrInvalid, q.Kind)
	case kind.Shell && (q.After != 0 || q.Count != 0 || q.Verb != ""):
		return fmt.Errorf("%w: %s takes no after, count or verb", ErrInvalid, q.Kind)
	case q.Verb != "" && (unknown != nil || !ofDevice.OfVerb()):
		return fmt.Errorf("%w: %s takes no verb", ErrInvalid, q.Kind)
	}
	q.Device, err = pick("device", q.Device, n.Devices)
	return err
}

func (q *ResetRequest) resolve(n Names) (err error) {
	switch q.Scope {
	case ScopeQP, ScopeCQ:
		if q.Device != "" {
			return fmt.Errorf("%w: a reset of %s is of an interface, not of a device", ErrInvalid, q.Scope)
		}
		q.Interface, err = pick("interface", q.Interface, n.Interfaces)
	case ScopeDevice:
		if q.Interface != "" {
			return fmt.Errorf("%w: a reset of a device is of all its interfaces", ErrInvalid)
		}
		q.Device, err = pick("device", q.Device, n.Devices)
	default:
		err = fmt.Errorf("%w: no scope %q; there are %s, %s and %s", ErrInvalid, q.Scope, ScopeQP, ScopeCQ, ScopeDevice)
	}
	return err
}

func (q *RecoverRequest) resolve(n Names) (err error) {
	q.Device, err = pick("device", q.Device, n.Devices)
	return err
}

// pick returns the name if it exists, or the only name if none is given.
func pick(what, name string, have []string) (string, error) {
	switch {
	case name != "" && slices.Contains(have, name):
		return name, nil
	case name != "":
		return "", fmt.Errorf("%w: no %s %q", ErrNotFound, what, name)
	case len(have) == 1:
		return have[0], nil
	case len(have) == 0:
		return "", fmt.Errorf("%w: there is no %s", ErrNotFound, what)
	}
	return "", fmt.Errorf("%w: there are several, name one by --%s: %s", ErrInvalid, what, strings.Join(have, ", "))
}
