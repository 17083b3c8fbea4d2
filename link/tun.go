package link

import (
	"fmt"
	"os"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

const tunPath = "/dev/net/tun"

// queueFlags are those of the attach (linux/if_tun.h).
const queueFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE | unix.IFF_NO_CARRIER

// createTAP makes the persistent multi-queue device, without a queue.
func createTAP(name string) error {
	ifce, err := water.New(water.Config{
		DeviceType: water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{
			Name:       name,
			Persist:    true,
			MultiQueue: true,
		},
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, classifyTun(err))
	}
	return ifce.Close()
}

// attachQueue opens a queue of the device, without carrier and without any
// offload. The file is in the netpoller; only an attached queue can be, so it
// becomes an os.File last.
func attachQueue(name string) (*os.File, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", tunPath, classifyTun(err))
	}
	if err := setUpQueue(fd, name); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("attach to %s: %w", name, classify(err))
	}
	return os.NewFile(uintptr(fd), tunPath), nil
}

func setUpQueue(fd int, name string) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(queueFlags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0); err != nil {
		return os.NewSyscallError("TUNSETOFFLOAD", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, HeaderLen); err != nil {
		return os.NewSyscallError("TUNSETVNETHDRSZ", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return os.NewSyscallError("TUNSETVNETLE", err)
	}
	return setCarrier(fd, false)
}

func setCarrier(fd int, on bool) error {
	value := 0
	if on {
		value = 1
	}
	return os.NewSyscallError("TUNSETCARRIER", unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, value))
}
