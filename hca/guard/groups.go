package guard

import (
	"errors"
	"slices"
	"sync"

	"ipoibd/hca"
)

// groups are the multicast groups that the backend has a QP attached to.
type groups struct {
	mu   sync.Mutex
	list []hca.MulticastGroup
}

// attach tells the backend, and notes what it did, however late.
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

// detachAll detaches from what is left, before the QP is closed behind the
// scenes: a backend keeps a QP that is attached.
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
