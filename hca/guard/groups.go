package guard

import (
	"errors"
	"slices"
	"sync"

	"ipoibd/hca"
)

// groups are the multicast groups to which a QP is attached in the backend.
type groups struct {
	mu   sync.Mutex
	list []hca.MulticastGroup
}

// attach attaches the QP in the backend and records the group, even if the backend returns
// late.
func (g *groups) attach(inner hca.QP, to hca.MulticastGroup) error {
	err := inner.AttachMulticast(to)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.list = append(g.list, to)
	}
	return err
}

// detach undoes attach.
func (g *groups) detach(inner hca.QP, from hca.MulticastGroup) error {
	err := inner.DetachMulticast(from)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.list = slices.DeleteFunc(g.list, func(x hca.MulticastGroup) bool { return x == from })
	}
	return err
}

// detachAll detaches the QP from the remaining groups, because a backend does not close a QP
// that is attached.
func (g *groups) detachAll(inner hca.QP) error {
	g.mu.Lock()
	left := slices.Clone(g.list)
	g.mu.Unlock()
	var errs []error
	for _, x := range left {
		errs = append(errs, g.detach(inner, x))
	}
	return errors.Join(errs...)
}
