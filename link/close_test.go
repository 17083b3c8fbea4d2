package link_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// leaveFilter attaches a filter that drops everything to ib0, and leaves it there, as a killed
// process does.
func leaveFilter(t *testing.T) {
	t.Helper()
	fd, err := openTun()
	must(t, err)
	must(t, attach(fd, "ib0"))
	drop := dropAll(t)
	ioctl(t, fd, unix.TUNSETFILTEREBPF, &drop)
	ioctl(t, fd, unix.TUNSETSTEERINGEBPF, &drop)
	must(t, unix.Close(fd))
}

// Removing the programs that a killed process left behind needs no CAP_BPF.
func TestAdoptionRemovesProgramsWithoutCAP_BPF(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openUp(t)
	must(t, tap.Close())
	leaveFilter(t)
	runtime.LockOSThread() // the thread ends with the test
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	caps[0].Effective = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	caps[0].Permitted = caps[0].Effective
	must(t, unix.Capset(&header, &caps[0]))
	again, adopted := openTAP(t, spec("ib0"))
	if !adopted {
		t.Error("not adopted")
	}
	must(t, again.SetCarrier(true))
	if !arrives(t, again, newHost(t)) {
		t.Error("the filter is still there")
	}
}

// An inspection that runs during Close restores nothing that Close has turned off.
func TestInspectionDoesNotUndoClose(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for range 50 {
		tap, _ := openTAP(t, spec("ib0"))
		_, err := tap.SetOffloads(link.AllOffloads)
		must(t, err)
		ended := make(chan struct{})
		inspecting := make(chan struct{})
		go func() {
			defer close(ended)
			close(inspecting)
			for err := error(nil); err == nil; {
				_, err = tap.Inspect()
			}
		}()
		<-inspecting
		must(t, tap.Close())
		<-ended
		requireFeatures(t, "after Close", "off")
		if t.Failed() {
			return
		}
	}
}
