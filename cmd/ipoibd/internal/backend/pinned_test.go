package backend

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// threadHCA knows the thread that opened it, and is busy at first.
type threadHCA struct {
	hca.Device
	tid  int
	busy error
}

func (d *threadHCA) Close() error {
	err := d.busy
	d.busy = nil
	return err
}

// The thread that has opened a device lives until the device is closed.
func TestR16ThreadOfADeviceLives(t *testing.T) {
	lives := func(tid int) bool {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid))
		return err == nil
	}
	open := pinned(func(name string) (hca.Device, error) {
		if name == "" {
			return nil, hca.ErrNoDevice
		}
		return &threadHCA{tid: unix.Gettid(), busy: hca.ErrBusy}, nil
	})
	if _, err := open(""); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("open: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		dev, err := open("rxe0")
		must(t, err)
		tid := dev.(*pinnedHCA).Device.(*threadHCA).tid
		if err := dev.Close(); !errors.Is(err, hca.ErrBusy) || !lives(tid) {
			t.Errorf("while the device is busy: %v, the thread lives: %v", err, lives(tid))
		}
		must(t, dev.Close())
		must(t, dev.Close())
	}) // which waits for the goroutine of the thread
}
