package resetlock

import (
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

// A start opens the device for a moment only while no other process resets it, and none begins to reset
// it in that moment.
func TestR16UseExcludesAReset(t *testing.T) {
	checkLeaks(t)
	conf := Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	if err := unix.Chmod(conf.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	conf.Device = reset.Device{NodeGUID: hca.GUID{7: 1}, Name: "rxe0"}
	other := &files{conf: conf}
	if err := other.open(conf.Dir, conf.Device.Key()); err != nil {
		t.Fatal(err)
	}
	defer other.close()
	used := 0
	use := func() error {
		used++
		if other.flock(other.use, unix.LOCK_EX) {
			t.Error("another process could reset the device")
		}
		return hca.ErrIO
	}
	if !other.flock(other.use, unix.LOCK_EX) {
		t.Fatal("no lock")
	}
	if err := Use(conf, use); !errors.Is(err, ErrResetting) || used != 0 {
		t.Errorf("during a reset: %v, called %d times", err, used)
	}
	other.flock(other.use, unix.LOCK_UN)
	if err := Use(conf, use); !errors.Is(err, hca.ErrIO) || used != 1 {
		t.Errorf("after it: %v, called %d times", err, used)
	}
	conf.Dir = ""
	if err := Use(conf, func() error { return nil }); err != nil {
		t.Error(err)
	}
}
