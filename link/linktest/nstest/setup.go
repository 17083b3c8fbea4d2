package nstest

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setUpChild prepares the new namespaces of this process.
func setUpChild() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mountSys(); err != nil {
		return err
	}
	// Files that programs share by fixed paths, such as control sockets.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return loopbackUp()
}

// mountSys mounts a /sys for the new network namespace. In a user namespace the kernel
// allows this only with the restrictions of the existing /sys, so if it refuses, mountSys
// tries a read-only mount.
func mountSys() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("sysfs", "/sys", "sysfs", flags, "")
	if errors.Is(err, unix.EPERM) {
		err = unix.Mount("sysfs", "/sys", "sysfs", flags|unix.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// loopbackUp sets lo up in the thread's network namespace.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
