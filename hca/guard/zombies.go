package guard

import (
	"fmt"
	"sync/atomic"

	"ipoibd/hca"
)

// DefaultMaxZombies bounds the zombies of an HCA, and so of a process, whose
// configuration names its HCAs: each zombie may keep all the memory that an instance
// registered, and its stuck verbs, at most two times Options.MaxStuck and two, a thread
// each.
const DefaultMaxZombies = 8

// Zombies counts the instances of an HCA that have failed and that the backend has not
// released yet, because a call hangs in it. All instances of an HCA share one, so that
// they are bounded over the life of the process (R19); each HCA has its own, so that one
// that hangs does not stop the recovery of another. The zero value is ready.
type Zombies struct{ n atomic.Int64 }

// Room returns an error while no further instance may be opened, because too many have
// failed and hang. It wraps [hca.ErrBusy]: there is room again when one returns.
func (z *Zombies) Room() error {
	n := z.n.Load()
	if n < DefaultMaxZombies {
		return nil
	}
	return fmt.Errorf("%d earlier instances of this HCA still hang in the driver, and no further one is opened until one of them returns: %w; "+
		"reset the device by hand, or restart the daemon", n, hca.ErrBusy)
}

// rise counts a device that fails, unless the backend has released it already.
func (d *Device) rise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside > 0 {
		d.zombie = true
		d.opts.Zombies.n.Add(1)
	}
}

// leave notes that a call has left the backend, or that the backend has released the
// device. Device.mu is held.
func (d *Device) leave() {
	d.inside--
	if d.inside == 0 && d.zombie {
		d.zombie = false
		d.opts.Zombies.n.Add(-1)
	}
}
