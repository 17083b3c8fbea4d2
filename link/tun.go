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

// createTAP makes the persistent multi-queue device, without a queue. It belongs
// to the process's user and group.
func createTAP(name string) error {
	ifce, err := water.New(water.Config{
		DeviceType: water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{
			Name:       name,
			Persist:    true,
			MultiQueue: true,
			Permissions: &water.DevicePermissions{
				Owner: uint(os.Geteuid()), Group: uint(os.Getegid()),
			},
		},
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, classifyTun(err))
	}
	return ifce.Close()
}

// attachQueue opens a queue of the device, without carrier where it is the only
// one. The file is in the netpoller; only an attached queue can be, so it becomes
// an os.File last.
func attachQueue(name string) (*os.File, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", tunPath, classifyTun(err))
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(queueFlags)
		err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("attach to %s: %w", name, classify(err))
	}
	return os.NewFile(uintptr(fd), tunPath), nil
}

// setUpDevice sets what belongs to the device and not to the queue, and which any
// other queue can therefore change. With an owner and a group, the kernel lets
// other users attach only with CAP_NET_ADMIN (tun_not_capable, drivers/net/tun.c).
func setUpDevice(fd int) error {
	for _, set := range []struct {
		name  string
		req   uint
		value int
	}{
		{"TUNSETOWNER", unix.TUNSETOWNER, os.Geteuid()},
		{"TUNSETGROUP", unix.TUNSETGROUP, os.Getegid()},
		{"TUNSETPERSIST", unix.TUNSETPERSIST, 1},
		{"TUNSETOFFLOAD", unix.TUNSETOFFLOAD, 0},
	} {
		if err := unix.IoctlSetInt(fd, set.req, set.value); err != nil {
			return os.NewSyscallError(set.name, err)
		}
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return os.NewSyscallError("TUNSETVNETLE", err)
	}
	return setHeaderLen(fd)
}

func setHeaderLen(fd int) error {
	return os.NewSyscallError("TUNSETVNETHDRSZ", unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, HeaderLen))
}

func setCarrier(fd int, on bool) error {
	value := 0
	if on {
		value = 1
	}
	return os.NewSyscallError("TUNSETCARRIER", unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, value))
}
