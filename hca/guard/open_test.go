package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// An open_device that hangs is abandoned after its limit, and is a zombie until it returns. The device
// that it opens late is closed. Their number is bounded like that of other zombies.
func TestR19OpenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var zombies guard.Zombies
		var fakes []*fake
		release := make(chan struct{})
		open := func() error {
			start := time.Now()
			_, err := guard.Open(t.Context(), func(context.Context) (hca.Device, error) {
				f := newFake()
				fakes = append(fakes, f)
				<-release
				return f, nil
			}, guard.Options{Zombies: &zombies})
			if took := time.Since(start); errors.Is(err, hca.ErrStuck) && took != guard.DefaultOpenTimeout {
				t.Errorf("abandoned after %v", took)
			}
			return err
		}
		for range guard.MaxZombies {
			if err := open(); !errors.Is(err, hca.ErrStuck) {
				t.Fatalf("%v, want ErrStuck", err)
			}
		}
		if err := open(); !errors.Is(err, hca.ErrBusy) || len(fakes) != guard.MaxZombies {
			t.Errorf("%d openings hang, then %v, want ErrBusy", len(fakes), err)
		}
		close(release)
		synctest.Wait()
		for _, f := range fakes {
			if got := f.released(); len(got) != 1 {
				t.Errorf("released %v, want the device", got)
			}
		}
		if err := zombies.Room(); err != nil {
			t.Error(err)
		}
	})
}

func TestOpen(t *testing.T) {
	for _, want := range []error{nil, hca.ErrNoMemory} {
		dev, err := guard.Open(t.Context(), func(context.Context) (hca.Device, error) { return newFake(), want }, guard.Options{})
		if !errors.Is(err, want) || (dev != nil) != (want == nil) {
			t.Errorf("%v, %v, want %v", dev, err, want)
		}
	}
}
