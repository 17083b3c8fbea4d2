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

// FaultRequest requests a fault (POST /v1/fault).
type FaultRequest struct {
	Kind   string `json:"kind"`             // one of [FaultKinds]
	After  int    `json:"after,omitempty"`  // opportunities to skip before it strikes
	Count  int    `json:"count,omitempty"`  // number of times it strikes; 0 means 1
	Verb   string `json:"verb,omitempty"`   // the verb, for verb_hangs and verb_hangs_forever; empty: any
	Device string `json:"device,omitempty"` // empty: the only one
}

// ResetRequest requests a reset (POST /v1/reset).
type ResetRequest struct {
	Scope     string `json:"scope"`               // qp, cq or device
	Interface string `json:"interface,omitempty"` // for qp and cq; empty: the only one
	Device    string `json:"device,omitempty"`    // for device; empty: the only one
}

// RecoverRequest requests a retry of a device that was given up (POST /v1/recover).
type RecoverRequest struct {
	Device string `json:"device,omitempty"` // empty: the only one
}

// bare is the body of a request without parameters.
type bare struct{}

func (*bare) resolve(Names) error { return nil }

func (q *FaultRequest) resolve(n Names) (err error) {
	kind, ok := findKind(q.Kind)
	ofDevice, unknown := faults.ParseKind(q.Kind)
	switch {
	case !ok:
		return fmt.Errorf("%w: no fault %q; 'ipoibd fault --list' lists them", ErrInvalid, q.Kind)
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
			return fmt.Errorf("%w: reset %s takes an interface, not a device", ErrInvalid, q.Scope)
		}
		q.Interface, err = pick("interface", q.Interface, n.Interfaces)
	case ScopeDevice:
		if q.Interface != "" {
			return fmt.Errorf("%w: reset device takes no interface; it affects all interfaces of the device", ErrInvalid)
		}
		q.Device, err = pick("device", q.Device, n.Devices)
	default:
		err = fmt.Errorf("%w: unknown scope %q; use %s, %s or %s", ErrInvalid, q.Scope, ScopeQP, ScopeCQ, ScopeDevice)
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
	return "", fmt.Errorf("%w: there are several; choose one with --%s: %s", ErrInvalid, what, strings.Join(have, ", "))
}
