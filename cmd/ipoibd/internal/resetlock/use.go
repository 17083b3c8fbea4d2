package resetlock

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrResetting means that another process resets the device.
var ErrResetting = errors.New("another process is resetting the device")

// Use calls use while this process holds the shared lock: use opens the device for a moment and
// closes it again. If another process resets the device, Use returns ErrResetting instead.
func Use(conf Config, use func() error) error {
	if conf.Dir == "" {
		return use()
	}
	f := &files{conf: conf}
	if err := f.open(conf.Dir, conf.Device.Key()); err != nil {
		return err
	}
	defer f.close()
	if !f.flock(f.use, unix.LOCK_SH) {
		return ErrResetting
	}
	return use()
}
