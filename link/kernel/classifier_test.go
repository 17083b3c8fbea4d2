package kernel_test

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// A program runs for each packet at its hook, replaces an earlier one, and leaves nothing behind. Classifiers and the qdisc
// of others stay.
func TestAttachProgram(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	// The program drops ARP as well: an unanswered request would delay the next ping by a second.
	a.Run("ping", "-c", "1", nstest.IPv4(1))
	a.Run("ip", "neigh", "change", nstest.IPv4(1), "dev", nstest.Dev, "nud", "permanent")
	b.Run("ip", "neigh", "change", nstest.IPv4(0), "dev", nstest.Dev, "nud", "permanent")
	reaches := func() bool { return a.Command("ping", "-c", "1", "-W", "1", nstest.IPv4(1)).Run() == nil }
	classifiers := func() string {
		return b.Run("tc", "qdisc", "show", "dev", nstest.Dev, "clsact") + b.Run("sh", "-c",
			"for at in ingress egress; do tc filter show dev "+nstest.Dev+" $at; done 2>/dev/null || true")
	}
	b.Do(func() {
		drop, pass := nstest.Program(t, ebpf.SchedCLS, 2), nstest.Program(t, ebpf.SchedCLS, -1) // TC_ACT_SHOT and TC_ACT_UNSPEC
		l, err := netlink.LinkByName(nstest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		index := l.Attrs().Index
		for _, hook := range []kernel.Hook{kernel.Ingress, kernel.Egress} {
			for _, c := range []struct {
				program int
				reaches bool
			}{{drop, false}, {pass, true}, {drop, false}} {
				if err := kernel.AttachProgram(index, hook, c.program); err != nil {
					t.Fatal(err)
				}
				if got := reaches(); got != c.reaches {
					t.Errorf("%v: the host reaches the other one: %t; %s", hook, got, classifiers())
				}
			}
			if n := strings.Count(classifiers(), "ipoibd"); n != 1 {
				t.Errorf("%d classifiers: %s", n, classifiers())
			}
			for range 2 {
				if err := kernel.DetachProgram(index, hook); err != nil {
					t.Error(err)
				}
			}
			if !reaches() || strings.TrimSpace(classifiers()) != "" {
				t.Errorf("afterwards: %s", classifiers())
			}
		}
		if err := kernel.AttachProgram(index, kernel.Egress, drop); err != nil {
			t.Fatal(err)
		}
		other := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: uint32(kernel.Ingress), Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 7},
			Fd:          pass, Name: "another", DirectAction: true,
		}
		if err := netlink.FilterAdd(other); err != nil {
			t.Fatal(err)
		}
		if err := kernel.DetachProgram(index, kernel.Egress); err != nil {
			t.Error(err)
		}
		if s := classifiers(); strings.Contains(s, "ipoibd") || !strings.Contains(s, "another") {
			t.Errorf("another's classifier is gone: %s", s)
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(netlink.FilterDel(other))
		must(netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT}}))
		b.Run("tc", "qdisc", "add", "dev", nstest.Dev, "ingress")
		if err := kernel.AttachProgram(index, kernel.Egress, drop); err == nil {
			t.Error("attached to the egress of an interface with an ingress qdisc")
		}
		must(kernel.AttachProgram(index, kernel.Ingress, pass))
		must(kernel.DetachProgram(index, kernel.Ingress))
		if s := b.Run("tc", "qdisc", "show", "dev", nstest.Dev, "ingress"); !strings.Contains(s, "ingress") {
			t.Error("the ingress qdisc of another process is gone")
		}
		if err := kernel.AttachProgram(1<<20, kernel.Ingress, drop); err == nil {
			t.Error("attached to no interface")
		}
		if err := kernel.DetachProgram(1<<20, kernel.Ingress); err != nil {
			t.Error(err)
		}
	})
}
