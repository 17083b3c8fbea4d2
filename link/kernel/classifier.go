package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hook is where an eBPF program sees the packets of an interface.
type Hook uint32

// Hooks.
const (
	Ingress Hook = netlink.HANDLE_MIN_INGRESS // as they arrive, before the host's stack
	Egress  Hook = netlink.HANDLE_MIN_EGRESS  // as the host's stack sends them, before the queueing discipline
)

func (h Hook) String() string {
	if h == Ingress {
		return "ingress"
	}
	return "egress"
}

// The priority and the name of our classifier. Those with a smaller number run first.
const (
	classifierPriority = 60000
	classifierHandle   = 1
	classifierName     = "ipoibd"
)

// AttachProgram makes a program (BPF_PROG_TYPE_SCHED_CLS) run for each packet of an interface in the current network
// namespace. It replaces the program of an earlier process. The kernel keeps the program until DetachProgram, or until the
// interface is deleted.
func AttachProgram(index int, hook Hook, fd int) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
	err := netlink.QdiscAdd(qdisc)
	if errors.Is(err, unix.EEXIST) && hook == Egress {
		// An ingress qdisc takes the place, and would run the program as packets arrive.
		err = needClsact(index)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a clsact qdisc to interface %d: %w", index, err)
	}
	f := classifier(index, hook)
	f.Fd = fd
	if err := netlink.FilterReplace(f); err != nil {
		return errors.Join(fmt.Errorf("attach an eBPF program to interface %d: %w", index, err), removeIfEmpty(index))
	}
	return nil
}

// DetachProgram removes the program of AttachProgram, including one that an earlier process attached. A missing program or
// interface is not an error.
func DetachProgram(index int, hook Hook) error {
	err := netlink.FilterDel(classifier(index, hook))
	switch {
	case err != nil && gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("detach an eBPF program from interface %d, which 'tc filter del dev NAME %v pref %d' also does: %w", index, hook, classifierPriority, err)
	}
	return removeIfEmpty(index)
}

func classifier(index int, hook Hook) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: uint32(hook), Handle: classifierHandle, Protocol: unix.ETH_P_ALL, Priority: classifierPriority,
		},
		Name: classifierName, DirectAction: true,
	}
}

// needClsact returns an error unless an interface has a clsact qdisc.
func needClsact(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	has, err := hasClsact(l)
	if err == nil && !has {
		err = errors.New("it has an ingress qdisc, which another program must remove")
	}
	return err
}

// hasClsact reports whether an interface has a clsact qdisc. An ingress qdisc has the same handle.
func hasClsact(l netlink.Link) (bool, error) {
	qdiscs, err := List(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }), err
}

// removeIfEmpty removes the clsact qdisc of an interface, if there is one, and it has no classifier of any process.
func removeIfEmpty(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return ignoreGone(err)
	}
	if has, err := hasClsact(l); err != nil || !has {
		return ignoreGone(err)
	}
	for _, hook := range []Hook{Ingress, Egress} {
		filters, err := List(func() ([]netlink.Filter, error) { return netlink.FilterList(l, uint32(hook)) })
		if err != nil || len(filters) > 0 {
			return ignoreGone(err)
		}
	}
	return ignoreGone(netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT}}))
}

// gone reports whether an error means that a classifier, its qdisc or its interface does not exist.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.As(err, new(netlink.LinkNotFoundError))
}

func ignoreGone(err error) error {
	if err == nil || gone(err) {
		return nil
	}
	return err
}
