package link

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// A process that was killed lets go of its lock a moment before its queue.
const (
	detachTimeout = time.Second
	detachPoll    = 5 * time.Millisecond
)

// Open makes the interface of a specification, down, or adopts the one of that
// name that is ours (adopted is true), with whatever the host made of it since.
// In both cases it has no carrier. It may block for a second while a process
// that was killed lets go. Errors: ErrSpec, ErrNameTaken, ErrOwned (an
// *OwnedError), ErrNoTun, ErrPermission.
func Open(spec Spec) (t *TAP, adopted bool, err error) {
	if err := spec.Validate(); err != nil {
		return nil, false, err
	}
	own, err := acquire(spec.Name)
	if err != nil {
		return nil, false, err
	}
	nl, err := openRtnl()
	if err != nil {
		return nil, false, errors.Join(fmt.Errorf("open netlink: %w", err), own.release())
	}
	adopted, err = prepare(nl, spec)
	if err == nil {
		t, err = newTAP(spec.Name, own, nl)
	}
	if err != nil {
		nl.close()
		return nil, false, errors.Join(err, own.release())
	}
	return t, adopted, nil
}

// prepare sees to it that the interface is there, is ours and has no queue.
func prepare(nl *rtnl, spec Spec) (adopted bool, err error) {
	found, err := nl.byName(spec.Name)
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", spec.Name, classify(err))
	}
	if found == nil {
		return false, create(nl, spec)
	}
	if err := checkOurs(found); err != nil {
		return false, err
	}
	return true, awaitDetached(nl, found)
}

// create makes the interface. The alias comes last, so that one that bears it
// is complete; a failure takes the interface away again.
func create(nl *rtnl, spec Spec) error {
	if err := createTAP(spec.Name); err != nil {
		return err
	}
	l, err := nl.byName(spec.Name)
	if err != nil || l == nil {
		return fmt.Errorf("find %s after its creation: %w", spec.Name, errors.Join(ErrNotFound, err))
	}
	if err := nl.do(func(h *netlink.Handle) error { return configure(h, l, spec) }); err != nil {
		undo := nl.do(func(h *netlink.Handle) error { return h.LinkDel(l) })
		return errors.Join(fmt.Errorf("configure %s: %w", spec.Name, classify(err)), undo)
	}
	return nil
}

func configure(h *netlink.Handle, l netlink.Link, spec Spec) error {
	if err := h.LinkSetHardwareAddr(l, spec.MAC[:]); err != nil {
		return fmt.Errorf("set MAC: %w", err)
	}
	if err := h.LinkSetMTU(l, spec.MTU); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	if err := h.LinkSetTxQLen(l, cmp.Or(spec.TxQueueLen, DefaultTxQueueLen)); err != nil {
		return fmt.Errorf("set transmit queue length: %w", err)
	}
	if err := h.LinkSetAlias(l, AliasPrefix); err != nil {
		return fmt.Errorf("set alias: %w", err)
	}
	return nil
}

// checkOurs says what an interface is that cannot be adopted.
func checkOurs(l netlink.Link) error {
	a := l.Attrs()
	if !strings.HasPrefix(a.Alias, AliasPrefix) {
		return fmt.Errorf("%w: %s is a %s with the alias %q", ErrNameTaken, a.Name, l.Type(), a.Alias)
	}
	tap, ok := l.(*netlink.Tuntap)
	if !ok || tap.Mode != netlink.TUNTAP_MODE_TAP {
		return fmt.Errorf("%w: %s bears our alias but is a %s, not a TAP", ErrNameTaken, a.Name, l.Type())
	}
	if tap.Flags&netlink.TUNTAP_MULTI_QUEUE == 0 {
		return fmt.Errorf("%w: %s bears our alias but is not a multi-queue TAP", ErrNameTaken, a.Name)
	}
	return nil
}

// awaitDetached waits until no process has a queue of the interface, in whose
// place the kernel would let ours be a second one.
func awaitDetached(nl *rtnl, l netlink.Link) error {
	name := l.Attrs().Name
	for end := time.Now().Add(detachTimeout); queues(l) > 0; time.Sleep(detachPoll) {
		if time.Now().After(end) {
			return &OwnedError{Name: name}
		}
		var err error
		if l, err = nl.byName(name); err != nil || l == nil {
			return fmt.Errorf("look for %s: %w", name, errors.Join(ErrNotFound, err))
		}
	}
	return nil
}

// queues counts the descriptors that are attached to a TAP.
func queues(l netlink.Link) int {
	tap, ok := l.(*netlink.Tuntap)
	if !ok {
		return 0
	}
	return tap.Queues + tap.DisabledQueues
}

// Delete takes away an interface that is ours and that no process holds.
// Errors: ErrSpec, ErrNotFound, ErrNameTaken, ErrOwned, ErrPermission.
func Delete(name string) (err error) {
	if err := validName(name); err != nil {
		return err
	}
	own, err := acquire(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.release()) }()
	nl, err := openRtnl()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.close()
	return remove(nl, name)
}

func remove(nl *rtnl, name string) error {
	l, err := nl.byName(name)
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, classify(err))
	}
	if l == nil {
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err := errors.Join(checkOurs(l), awaitDetached(nl, l)); err != nil {
		return err
	}
	if err := nl.do(func(h *netlink.Handle) error { return h.LinkDel(l) }); err != nil {
		return fmt.Errorf("delete %s: %w", name, classify(err))
	}
	return nil
}
