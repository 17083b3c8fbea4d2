package backend

import (
	"context"
	"testing"
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
			must(t, d.slot.Inject(faults.Fault{Kind: kind, Verb: "open_device"}))
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
