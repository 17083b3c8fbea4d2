package link_test

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/kernel"
	"ipoibd/link/linktest"
	"ipoibd/link/linktest/nstest"
)

// arrives reports whether a frame of the host reaches the reader.
func arrives(t *testing.T, tap *link.TAP, h *host) bool {
	t.Helper()
	frame := make([]byte, 60)
	binary.BigEndian.PutUint16(frame[12:], linktest.EtherType)
	h.Send(frame)
	bufs, sizes := [][]byte{make([]byte, 2048)}, make([]int, 1)
	for range 2 { // a Wake that comes before a read, if this thread waits for a processor, ends it whatever is queued
		wake := time.AfterFunc(200*time.Millisecond, tap.Wake)
		for n := 1; n > 0; {
			var err error
			n, err = tap.ReadBatch(bufs, sizes)
			must(t, err)
			if n > 0 && binary.BigEndian.Uint16(bufs[0][link.HeaderLen+12:]) == linktest.EtherType {
				wake.Stop()
				return true
			}
		}
	}
	return false
}

// A filter works until it is replaced. An inspection restores it if another process has
// removed it, and does not report that, because the kernel does not report programs.
func TestProgramsAreSetAndKept(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	drop := link.Programs{Filter: int(dropAll(t)), Steering: -1}
	must(t, tap.SetPrograms(drop))
	if arrives(t, tap, h) {
		t.Error("a frame passed the filter")
	}
	fd, err := openTun()
	must(t, err)
	must(t, attach(fd, "ib0"))
	none := int32(-1)
	ioctl(t, fd, unix.TUNSETFILTEREBPF, &none)
	must(t, unix.Close(fd))
	if !arrives(t, tap, h) {
		t.Fatal("the filter is still there, so the test shows less")
	}
	if f, err := tap.Inspect(); err != nil || len(f.Restored) != 0 {
		t.Errorf("Inspect = %+v, %v", f, err)
	}
	if arrives(t, tap, h) {
		t.Error("a frame passed the filter after an inspection")
	}
	must(t, tap.SetPrograms(link.NoPrograms))
	if !arrives(t, tap, h) {
		t.Error("the filter was not removed")
	}
}

// Each wait for a frame is reported once, before and after. A read that finds a frame does
// not wait, and one that Wake ends has no frame.
func TestWaitsAreObserved(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	bufs, sizes := [][]byte{make([]byte, 2048)}, make([]int, 1)
	for stop := false; !stop; { // the frames that the kernel sends at first
		wake := time.AfterFunc(200*time.Millisecond, tap.Wake)
		n, err := tap.ReadBatch(bufs, sizes)
		must(t, err)
		wake.Stop()
		stop = n == 0
	}
	var events []string
	tap.ObserveWaits(0, func() { events = append(events, "wait") }, func() { events = append(events, "wake") })
	if !arrives(t, tap, h) { // it is queued before the read
		t.Fatal("no frame")
	}
	if len(events) != 0 {
		t.Errorf("a frame was queued: %v", events)
	}
	frame := make([]byte, 60)
	binary.BigEndian.PutUint16(frame[12:], linktest.EtherType)
	time.AfterFunc(50*time.Millisecond, func() { h.Send(frame) })
	if n, err := tap.ReadBatch(bufs, sizes); n != 1 || err != nil {
		t.Fatalf("ReadBatch = %d, %v", n, err)
	}
	if want := []string{"wait", "wake"}; !slices.Equal(events, want) {
		t.Errorf("events %v, want %v", events, want)
	}
	time.AfterFunc(50*time.Millisecond, tap.Wake)
	if n, err := tap.ReadBatch(bufs, sizes); n != 0 || err != nil {
		t.Fatalf("ReadBatch = %d, %v", n, err)
	}
	if want := []string{"wait", "wake", "wait"}; !slices.Equal(events, want) {
		t.Errorf("events %v, want %v", events, want)
	}
}

// A descriptor that is no program is refused, and no program stays.
func TestProgramsThatAreRefused(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	must(t, tap.SetPrograms(link.Programs{Filter: int(dropAll(t)), Steering: -1}))
	if err := tap.SetPrograms(link.Programs{Filter: int(dropAll(t)), Steering: 0}); err == nil {
		t.Error("standard input was accepted as a program")
	}
	if !arrives(t, tap, h) {
		t.Error("a filter stayed")
	}
	must(t, tap.Close())
	if err := tap.SetPrograms(link.NoPrograms); !errors.Is(err, link.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A program at the egress drops frames until it is removed: by -1, which also removes that of a killed process, or by Close.
// An interface in another namespace gets none.
func TestEgressProgram(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const stolen = 4 // TC_ACT_STOLEN of linux/pkt_cls.h, which drops a frame without an error to its sender
	tap, h := openUp(t)
	drop := nstest.Program(t, ebpf.SchedCLS, stolen)
	index, err := tap.AttachEgress(drop)
	must(t, err)
	if ib0, err := net.InterfaceByName("ib0"); err != nil || ib0.Index != index {
		t.Errorf("AttachEgress = %d; ib0 is %+v, %v", index, ib0, err)
	}
	if arrives(t, tap, h) {
		t.Error("a frame passed the program")
	}
	for range 2 { // once more, without a program
		_, err = tap.AttachEgress(-1)
		must(t, err)
	}
	if !arrives(t, tap, h) {
		t.Error("the program was not removed")
	}
	must(t, kernel.AttachProgram(index, kernel.Egress, drop)) // as a killed process leaves it
	if arrives(t, tap, h) {
		t.Fatal("a frame passed the program, so the test shows less")
	}
	_, err = tap.AttachEgress(-1)
	must(t, err)
	if !arrives(t, tap, h) {
		t.Error("the program of another process was not removed")
	}
	_, err = tap.AttachEgress(drop)
	must(t, err)
	must(t, tap.Close())
	tap, _ = openTAP(t, spec("ib0"))
	must(t, tap.SetCarrier(true))
	if !arrives(t, tap, newHost(t)) {
		t.Error("the program outlived Close")
	}
	moveTo(t, nstest.New(t))
	if index, err := tap.AttachEgress(drop); !errors.Is(err, link.ErrAway) || index != 0 {
		t.Errorf("in another namespace: %d, %v", index, err)
	}
}

// A TAP outlives its programs: Close removes them, and Open removes those of a process that
// was killed.
func TestProgramsEndWithTheirDevice(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openUp(t)
	must(t, tap.SetPrograms(link.Programs{Filter: int(dropAll(t)), Steering: -1}))
	must(t, tap.Close())
	// As a killed process leaves it: attached again, filtered, and closed.
	for _, left := range []bool{false, true} {
		if left {
			fd, err := openTun()
			must(t, err)
			must(t, attach(fd, "ib0"))
			drop := dropAll(t)
			ioctl(t, fd, unix.TUNSETFILTEREBPF, &drop)
			must(t, unix.Close(fd))
		}
		again, adopted := openTAP(t, spec("ib0"))
		if !adopted {
			t.Error("not adopted")
		}
		must(t, again.SetCarrier(true))
		if !arrives(t, again, newHost(t)) {
			t.Errorf("left by a killed process: %t: the filter is still there", left)
		}
		must(t, again.Close())
	}
}
