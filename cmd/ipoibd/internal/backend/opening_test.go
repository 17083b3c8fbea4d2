package backend

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca/faults"
)

// A device whose opening hangs, or fails with EIO, is reset by the configured means and opened again.
// One whose opening fails with ENOMEM is opened again, without a reset (R05, R19, R25).
func TestR25OpeningThatFails(t *testing.T) {
	for kind, resets := range map[faults.Kind]int{faults.VerbHangs: 1, faults.VerbEIO: 1, faults.VerbENOMEM: 0} {
		cfg := realConfig()
		cfg.Reset = config.ResetLink
		bubble(t, cfg, func(k *fakeKernel, d *real) {
			close(k.freed)
			must(t, d.slot.Faults.Inject(faults.Fault{Kind: kind, Verb: "open_device"}))
			must(t, d.Suspend(context.Background()))
			must(t, d.Resume(context.Background()))
			begin := time.Now()
			await(t, d, isOpen)
			if took := time.Since(begin); k.did() != resets || took > 11*time.Second {
				t.Errorf("%v: %d resets, open after %v; want %d", kind, k.did(), took, resets)
			}
		})
	}
}

// A device that does not work at the start of the daemon does not end the start: it is reset, although it
// was never open.
func TestR25DeviceThatIsBrokenAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		k.broken = true
		close(k.freed)
		cfg := realConfig()
		cfg.Reset = config.ResetLink
		d, err := k.newReal(cfg, 1)
		if !errors.Is(err, ErrBroken) || d.portGUID != rxeGUID {
			t.Errorf("Probe: GUID %v, %v, want a GUID and ErrBroken", d.portGUID, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { d.slot.Run(ctx, d.Run) })
		await(t, d, isOpen)
		if k.did() != 1 {
			t.Errorf("%d resets, want 1", k.did())
		}
		cancel()
		run.Wait()
	})
}

// The driver of hardware has taken the RDMA device away, and its PCI function is present: the device is
// not unplugged, and is reset after a minute, if there are means of a reset.
func TestR25DeviceThatTheKernelHasTakenAway(t *testing.T) {
	for _, how := range []config.Reset{config.ResetPCI, config.ResetNone} {
		cfg := realConfig()
		cfg.Reset = how
		hardware := rxe("rxe0", 0, rxeGUID)
		hardware.Parent = ""
		synctest.Test(t, func(t *testing.T) {
			k := newFakeKernel(t, hardware)
			d, err := k.newReal(cfg, 1)
			must(t, err)
			k.function.resets = func(what string) {
				k.noteReset(what)
				again := hardware
				again.Index++
				k.become(again)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var run sync.WaitGroup
			run.Go(func() { d.slot.Run(ctx, d.Run) })
			await(t, d, isOpen)
			k.become()
			time.Sleep(50 * time.Second)
			if s := d.Status(); s.Dead != (how == config.ResetPCI) || k.did() != 0 {
				t.Errorf("%v: dead %t, %d resets within 50 s", how, s.Dead, k.did())
			}
			time.Sleep(30 * time.Second)
			if open := d.View().Session != nil; open != (how == config.ResetPCI) {
				t.Errorf("%v: open %t after 80 s, %d resets", how, open, k.did())
			}
			cancel()
			run.Wait()
		})
	}
}
