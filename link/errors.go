package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Sentinel errors of this package. They are wrapped with the name of the interface and the
// kernel's error. Those that the user can resolve say how.
var (
	ErrSpec      = errors.New("invalid interface specification")
	ErrNameTaken = errors.New("an interface of this name exists and does not belong to ipoibd")
	ErrOwned     = errors.New("the interface is in use by another process")
	ErrNoTun     = errors.New("/dev/net/tun is missing: " +
		"run `modprobe tun`, or give the container the device (--device /dev/net/tun)")
	// ErrPermission is about /dev/net/tun as well as about netlink.
	ErrPermission = errors.New("not permitted: run as root, or with CAP_NET_ADMIN and access to /dev/net/tun")
	ErrNotFound   = errors.New("no such interface")
	ErrClosed     = errors.New("closed")
	// ErrGone means that the interface was deleted while it was open.
	ErrGone = errors.New("the interface was deleted")
)

// OwnedError reports which process holds an interface. It wraps ErrOwned, and does not name the interface.
type OwnedError struct {
	PID int // 0: unknown
}

func (e *OwnedError) Error() string {
	switch e.PID {
	case 0:
		return fmt.Sprintf("%v (its process is unknown)", ErrOwned)
	case os.Getpid():
		return "another interface of this process has this name; to swap two names, change one to a third name first"
	}
	return fmt.Sprintf("%v (process %d)", ErrOwned, e.PID)
}

func (e *OwnedError) Unwrap() error { return ErrOwned }

// classify wraps an error of the kernel with the matching sentinel.
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

// classifyTun does the same for an error from opening /dev/net/tun. ENOENT means that the
// device node is missing, ENXIO and ENODEV that the driver is missing.
func classifyTun(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w (%w)", ErrNoTun, err)
	}
	return classify(err)
}
