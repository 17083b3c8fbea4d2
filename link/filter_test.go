package link_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// ioctl makes a request with a pointer to its argument.
func ioctl[T any](t *testing.T, fd int, request uint, arg *T) {
	t.Helper()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(arg)))
	runtime.KeepAlive(arg)
	if errno != 0 {
		t.Fatalf("ioctl %x: %v", request, errno)
	}
}

// dropAll returns a filter that returns 0.
func dropAll(t *testing.T) int32 { return int32(nstest.Program(t, ebpf.SocketFilter, 0)) }

// A queue that came and went between two inspections may leave a filter that drops the
// frames of the host. The next inspection removes it, although the kernel does not report
// filters.
func TestInspectRemovesTheFiltersOfAQueueThatIsGone(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	for _, c := range []struct {
		name string
		set  func(fd int)
	}{
		{"classic filter", func(fd int) {
			drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
			ioctl(t, fd, unix.TUNATTACHFILTER, &unix.SockFprog{Len: 1, Filter: &drop})
		}},
		{"eBPF filter", func(fd int) {
			prog := dropAll(t)
			ioctl(t, fd, unix.TUNSETFILTEREBPF, &prog)
		}},
		{"address filter", func(fd int) { // struct tun_filter (linux/if_tun.h)
			ioctl(t, fd, unix.TUNSETTXFILTER, &struct {
				flags, count uint16
				addr         [6]byte
			}{count: 1, addr: [6]byte{2, 0xff}})
		}},
	} {
		fd, err := openTun()
		must(t, err)
		must(t, attach(fd, "ib0"))
		c.set(fd)
		must(t, unix.Close(fd))
		if arrives(t, tap, h) {
			t.Fatalf("%s: it drops nothing, so the test shows nothing", c.name)
		}
		if f, err := tap.Inspect(); err != nil || len(f.Restored) != 0 {
			t.Errorf("%s: Inspect = %+v, %v", c.name, f, err)
		}
		if !arrives(t, tap, h) {
			t.Errorf("%s: frames do not arrive after an inspection", c.name)
		}
	}
}

// An inspection turns off offloads that a queue left on, and reports them. With them, the
// frames of the host would carry virtio headers that no one reads.
func TestInspectTurnsOffloadsOff(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	fd, err := openTun()
	must(t, err)
	must(t, attach(fd, "ib0"))
	must(t, unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6))
	must(t, unix.Close(fd))
	for _, want := range [][]link.Change{{{What: link.PropertyOffloads, Found: "csum tso4 tso6"}}, nil} {
		f, err := tap.Inspect()
		if err != nil || len(f.Restored) != len(want) || len(want) > 0 && f.Restored[0] != want[0] {
			t.Errorf("Inspect = %+v, %v; want %v", f, err, want)
		}
	}
}

// Inspecting an interface that no one changed makes the kernel send no message. Each one
// would wake the watchers of every program on the host.
func TestInspectionIsSilent(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	_, err := tap.SetOffloads(link.AllOffloads)
	must(t, err)
	updates, stop := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	must(t, netlink.LinkSubscribe(updates, stop))
	newHost(t).SetUp(true)
	must(t, tap.SetCarrier(true))
	for u := range updates { // the messages of the carrier
		if u.Attrs().OperState == netlink.OperUp {
			break
		}
	}
	for range 20 {
		f, err := tap.Inspect()
		if err != nil || len(f.Restored) != 0 {
			t.Fatalf("Inspect = %+v, %v", f, err)
		}
	}
	l, err := netlink.LinkByName("ib0")
	must(t, err)
	must(t, netlink.LinkSetAlias(l, link.AliasPrefix+" done")) // a last message
	messages := 0
	for u := range updates {
		if u.Attrs().Alias == link.AliasPrefix+" done" {
			break
		}
		messages++
	}
	close(stop)
	if messages != 0 {
		t.Errorf("20 inspections made the kernel send %d messages", messages)
	}
}
