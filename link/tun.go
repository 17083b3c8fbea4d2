package link

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

const tunPath = "/dev/net/tun"

// queueFlags are the flags of the attached queue (linux/if_tun.h).
const queueFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE | unix.IFF_NO_CARRIER

// CheckTun returns nil if this process may open /dev/net/tun. Errors: ErrNoTun, ErrPermission.
func CheckTun() error {
	f, err := os.OpenFile(tunPath, os.O_RDWR, 0)
	if err != nil {
		return classifyTun(err)
	}
	return f.Close()
}

// createTAP creates a multi-queue device that belongs to the process's user and group,
// with one queue. Until it is persistent, the device disappears with its last queue.
func createTAP(name string) (queue *os.File, err error) {
	ifce, err := water.New(water.Config{
		DeviceType: water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{
			Name:       name,
			MultiQueue: true,
			Permissions: &water.DevicePermissions{
				Owner: uint(os.Geteuid()), Group: uint(os.Getegid()),
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, classifyTun(err))
	}
	return ifce.ReadWriteCloser.(*os.File), nil
}

// attachQueue opens a queue of the device, without carrier if it is the only one. The
// file is in the netpoller; only an attached queue can be, so it becomes an os.File
// last.
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

// setUnreported sets the properties that the kernel does not report to a queue. It does not
// set those that restoreQueue checks: that would undo a change without reporting it.
func setUnreported(fd int, offloads Offloads, programs Programs) error {
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(offloads)); err != nil {
		return os.NewSyscallError("TUNSETOFFLOAD", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNDETACHFILTER, 0); err != nil {
		return os.NewSyscallError("TUNDETACHFILTER", err)
	}
	for _, set := range []struct {
		name  string
		req   uint
		value int
	}{
		{"TUNSETVNETLE", unix.TUNSETVNETLE, 1},
		{"TUNSETSNDBUF", unix.TUNSETSNDBUF, math.MaxInt32}, // the kernel's default
		{"TUNSETTXFILTER", unix.TUNSETTXFILTER, 0},         // a struct tun_filter without addresses
	} {
		if err := unix.IoctlSetPointerInt(fd, set.req, set.value); err != nil {
			return os.NewSyscallError(set.name, err)
		}
	}
	return programs.set(fd)
}

// setOwner makes the device belong to this process's user and group. The kernel
// then lets other users attach only with CAP_NET_ADMIN (tun_not_capable,
// drivers/net/tun.c). The kernel sends a netlink message each time.
func setOwner(fd int) error {
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return os.NewSyscallError("TUNSETOWNER", err)
	}
	return os.NewSyscallError("TUNSETGROUP", unix.IoctlSetInt(fd, unix.TUNSETGROUP, os.Getegid()))
}

func setPersistent(fd int) error {
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
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

// setEthernet restores the link type, which the kernel refuses while the device is up.
func setEthernet(fd int) error {
	err := unix.IoctlSetInt(fd, unix.TUNSETLINK, unix.ARPHRD_ETHER)
	if errors.Is(err, unix.EBUSY) {
		return errLinkType
	}
	return os.NewSyscallError("TUNSETLINK", err)
}

var errLinkType = errors.New("another process has changed the link type from Ethernet; " +
	"to restore it, set the interface down for a moment")
