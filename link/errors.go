package link

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Sentinels of this package, wrapped with the name of the interface and the
// kernel's error. Their texts say what to do.
var (
	ErrSpec      = errors.New("invalid interface specification")
	ErrNameTaken = errors.New("an interface of this name exists and was not made by ipoibd")
	ErrOwned     = errors.New("another process holds the interface")
	ErrNoTun     = errors.New("/dev/net/tun is missing: run `modprobe tun`, or give the container the device (--device /dev/net/tun)")
	// ErrPermission is about /dev/net/tun as well as about netlink.
	ErrPermission = errors.New("not permitted: run as root, or with CAP_NET_ADMIN and access to /dev/net/tun")
	ErrNotFound   = errors.New("no such interface")
	ErrClosed     = errors.New("closed")
	// ErrGone means that the interface was deleted under its owner.
	ErrGone = errors.New("the interface was deleted")
)

// OwnedError tells who holds an interface; it wraps ErrOwned.
type OwnedError struct {
	Name string
	PID  int // 0: unknown
}

func (e *OwnedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s: %v (its process is unknown)", e.Name, ErrOwned)
	}
	return fmt.Sprintf("%s: %v (process %d)", e.Name, ErrOwned, e.PID)
}

func (e *OwnedError) Unwrap() error { return ErrOwned }

// classify puts the sentinel that belongs to the kernel's error in front of it.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	case errors.Is(err, unix.EBADFD):
		return fmt.Errorf("%w (%w)", ErrGone, err)
	}
	return err
}

// classifyTun does the same for an error of opening /dev/net/tun: ENOENT is a
// missing node, ENXIO and ENODEV are a missing driver.
func classifyTun(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w (%w)", ErrNoTun, err)
	}
	return classify(err)
}
