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

// The place of our classifier. Those of others come first, unless they have chosen a larger number.
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
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
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
		return fmt.Errorf("detach an eBPF program from interface %d: %w", index, err)
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

// removeIfEmpty removes the clsact qdisc of an interface, if there is one, and it has no classifier of any process.
func removeIfEmpty(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return ignoreGone(err)
	}
	qdiscs, err := List(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	// An ingress qdisc has the same handle.
	if err != nil || !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
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
