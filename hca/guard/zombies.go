package guard

import (
	"fmt"
	"sync/atomic"

	"ipoibd/hca"
)

// MaxZombies bounds the zombies of one HCA, and thereby of the process, because the
// configuration lists its HCAs. A zombie may keep all the memory that its instance
// registered, and one thread for each stuck call: at most 2*Options.MaxStuck verbs, NextEvent, one
// call that releases an object, and one post or method of a CQ for each goroutine that made them.
const MaxZombies = 8

// Zombies counts the failed instances of an HCA that the backend has not released yet,
// because a call hangs in it. All instances of an HCA share one Zombies, which bounds
// them over the lifetime of the process (R19). Each HCA has its own, so that one that
// hangs does not stop the recovery of another. The zero value is ready to use.
type Zombies struct{ n atomic.Int64 }

// Room returns an error while too many instances hang to open another one. The error
// wraps [hca.ErrBusy]: there is room again once one of them is released.
func (z *Zombies) Room() error {
	n := z.n.Load()
	if n < MaxZombies {
		return nil
	}
	return fmt.Errorf("not opening the HCA again: %d failed instances still hang in the driver: %w; "+
		"reset the device manually, or restart the daemon", n, hca.ErrBusy)
}

// countZombie counts a failing device, unless the backend has already released it.
func (d *Device) countZombie() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside > 0 {
		d.zombie = true
		d.opts.Zombies.n.Add(1)
	}
}

// leave records that a call has returned from the backend, or that the backend has released
// the device. Device.mu is held.
func (d *Device) leave() {
	d.inside--
	if d.inside == 0 && d.zombie {
		d.zombie = false
		d.opts.Zombies.n.Add(-1)
	}
}
