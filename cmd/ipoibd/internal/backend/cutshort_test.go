package backend

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

func TestCutShort(t *testing.T) {
	for _, c := range []struct {
		reset config.Reset
		err   error
		found []string
		want  string // what is added
	}{
		{config.ResetNone, hca.ErrNoDevice, []string{"0000:03:00.0"}, ""},
		{config.ResetLink, hca.ErrNoDevice, nil, "; if a reset was cut short, add the device again: rdma link add rxe0 type rxe netdev NETDEV"},
		{config.ResetDriver, hca.ErrNoDevice, []string{"0000:03:00.0", "0000:03:00.1"}, "; if a reset was cut short, bind the function to its driver again: echo ADDRESS > /sys/bus/pci/drivers_probe; functions without a driver: 0000:03:00.0, 0000:03:00.1"},
		{config.ResetPCI, hca.ErrNoDevice, []string{"0000:03:00.0"}, "; if a reset was cut short, bind the function to its driver again: echo ADDRESS > /sys/bus/pci/drivers_probe; functions without a driver: 0000:03:00.0"},
		{config.ResetPCI, hca.ErrNoDevice, nil, ""},
		{config.ResetPCI, hca.ErrInvalid, []string{"0000:03:00.0"}, ""},
	} {
		cfg := realConfig()
		cfg.HCA, cfg.Reset = "rxe0", c.reset
		err := cutShort(c.err, cfg, func() []string { return c.found })
		if added := strings.TrimPrefix(err.Error(), c.err.Error()); added != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s, %v, %v: %q, want %q", c.reset, c.err, c.found, added, c.want)
		}
	}
}

// H6: a daemon that finds no device, and the record of a reset of it that was cut short,
// completes the reset and starts; a record of another device, or another means, is
// left alone, and the error says what to do by hand.
func TestR21ResetCutShortIsCompletedAtTheStart(t *testing.T) {
	good := reset.Record{
		Phase: reset.PhaseResetting, Begun: true, Number: 3,
		Device: reset.Device{NodeGUID: rxeGUID, Parent: "eth0", Name: "rxe0", Means: "link"},
	}
	other, means, over := good, good, good
	other.Device.Name, means.Device.Means, over.Begun, over.Phase = "rxe1", "driver", false, reset.PhaseIdle
	for _, c := range []struct {
		name     string
		record   reset.Record
		complete bool
	}{{"ours", good, true}, {"another device", other, false}, {"another means", means, false}, {"over", over, false}} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			must(t, os.Mkdir(dir, 0o700))
			file := filepath.Join(dir, c.record.Device.Key()+".intent")
			must(t, os.WriteFile(file, c.record.Encode(), 0o600))
			k := newFakeKernel(t)
			cfg := realConfig()
			cfg.Reset, cfg.Coordinator = config.ResetLink, dir
			_, err := newRealHCA(k.t.Context(), cfg, k.openHCA, k.kernel(), slog.New(slog.NewTextHandler(k, nil)))
			if (err == nil) != c.complete || (len(k.added) == 1) != c.complete || c.complete && k.added[0] != "rxe0 eth0" || k.did() != 0 {
				t.Errorf("%v; added %v", err, k.added)
			}
			b, err := os.ReadFile(file)
			must(t, err)
			if r, err := reset.Decode(b); c.complete && (err != nil || r.Begun || r.Outcome != reset.OutcomeDone) {
				t.Errorf("%+v, %v is left", r, err)
			}
		})
	}
}

// A daemon that starts while another one shares the device, and could not bring it back yet, gives
// up soon. Meanwhile it keeps the other one from completing the reset only for moments, and ends at
// once if it is stopped.
func TestR21StartDelaysNoOtherDaemon(t *testing.T) {
	record := reset.Record{
		Begun: true, Number: 3, Outcome: reset.OutcomeFailed,
		Device: reset.Device{NodeGUID: rxeGUID, Parent: "eth0", Name: "rxe0", Means: "link"},
	}
	dir := filepath.Join(t.TempDir(), "locks")
	must(t, os.Mkdir(dir, 0o700))
	base := filepath.Join(dir, record.Device.Key())
	must(t, os.WriteFile(base+".intent", record.Encode(), 0o600))
	must(t, os.WriteFile(base+".use", nil, 0o600))
	use, err := os.Open(base + ".use") // of the other daemon
	must(t, err)
	defer use.Close()
	must(t, unix.Flock(int(use.Fd()), unix.LOCK_SH))
	intent, err := os.OpenFile(base+".intent", os.O_RDWR, 0)
	must(t, err)
	defer intent.Close()
	for _, stopped := range []time.Duration{time.Hour, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stopped)
			defer cancel()
			k := newFakeKernel(t)
			cfg := realConfig()
			cfg.Reset, cfg.Coordinator = config.ResetLink, dir
			type result struct {
				took time.Duration
				err  error
			}
			began, done := time.Now(), make(chan result, 1)
			go func() {
				_, err := newRealHCA(ctx, cfg, k.openHCA, k.kernel(), slog.New(slog.NewTextHandler(k, nil)))
				done <- result{time.Since(began), err}
			}()
			for len(done) == 0 {
				time.Sleep(77 * time.Millisecond)
				synctest.Wait()
				if unix.Flock(int(intent.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
					t.Fatalf("after %v the other daemon is refused the lock on the intent", time.Since(began))
				}
				must(t, unix.Flock(int(intent.Fd()), unix.LOCK_UN))
			}
			if got := <-done; got.took != min(stopped, completeLimit) || !errors.Is(got.err, hca.ErrNoDevice) || errors.Is(got.err, context.DeadlineExceeded) != (stopped < completeLimit) {
				t.Errorf("stopped after %v: the start took %v, %v", stopped, got.took, got.err)
			}
		})
	}
}

// A process that completes the reset of another one brings the device back if it is gone, and
// resets it otherwise.
func TestR21ResetOfAnotherProcessIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		close(k.freed)
		cfg := realConfig()
		cfg.Reset = config.ResetLink
		d, err := k.newReal(cfg, 1)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { d.slot.Run(ctx, d.Run) })
		await(t, d, isOpen)
		h := d.slot.bare.(*realHCA)
		k.become()
		await(t, d, isGone)
		must(t, h.Complete(t.Context()))
		if k.did() != 0 || len(k.added) != 1 || k.added[0] != "rxe0 eth0" {
			t.Errorf("%d resets, added %v", k.did(), k.added)
		}
		cancel()
		run.Wait()
		must(t, h.Complete(t.Context()))
		if k.did() != 1 || len(k.added) != 2 {
			t.Errorf("%d resets, added %v", k.did(), k.added)
		}
	})
}

// A reset that has deleted the device and cannot add it again is tried again after the grace
// period: only this process knows that the device is missing.
func TestR21DeviceThatCouldNotBeAddedAgainIsAddedLater(t *testing.T) {
	cfg := realConfig()
	cfg.Reset = config.ResetLink
	bubble(t, cfg, func(k *fakeKernel, d *real) {
		close(k.freed)
		k.addErr = hca.ErrNoMemory
		must(t, d.Reset(context.Background()))
		await(t, d, isGone)
		time.Sleep(cfg.Grace / 2)
		if k.did() != 1 || len(k.added) != 0 {
			t.Fatalf("%d resets, added %v; want a reset that could not add the device", k.did(), k.added)
		}
		k.mu.Lock()
		k.addErr = nil
		k.mu.Unlock()
		await(t, d, isOpen)
		if k.did() != 1 || len(k.added) != 1 {
			t.Errorf("%d resets, added %v; want the device added without another reset", k.did(), k.added)
		}
	})
}

// The same, but the process exits before it can retry: the next start adds the device. The
// record has what it needs, also where a PCI function is reset below a Soft-RoCE device.
func TestR21DeviceThatCouldNotBeAddedAgainIsAddedByTheNextStart(t *testing.T) {
	for how, did := range map[config.Reset]string{config.ResetLink: "", config.ResetDriver: "rebindprobe"} {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		close(k.freed)
		cfg := realConfig()
		cfg.Reset, cfg.Coordinator, cfg.Grace = how, filepath.Join(t.TempDir(), "locks"), time.Minute
		k.below = how == config.ResetDriver
		d, err := k.newReal(cfg, 1)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { d.slot.Run(ctx, d.Run) })
		await(t, d, isOpen)
		k.mu.Lock()
		k.addErr = hca.ErrNoMemory
		k.mu.Unlock()
		must(t, d.Reset(context.Background()))
		await(t, d, func(v device.View) bool { return isGone(v) && k.did() == 1 })
		cancel()
		run.Wait()
		k.addErr = nil
		k.set(nil) // without its netdev, the device is gone
		if _, err = k.newReal(cfg, 1); err != nil || k.did() != 1 || len(k.added) != 1 || k.function.did != did {
			t.Errorf("%s: the next start: %v; %d resets, %q, added %v", how, err, k.did(), k.function.did, k.added)
		}
	}
}
