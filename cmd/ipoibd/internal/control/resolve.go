package control

import (
	"fmt"
	"slices"
	"strings"

	"ipoibd/hca/faults"
)

// bare is the body of an order that says all by its path.
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

// pick finds what is named, or the only one where nothing is.
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
