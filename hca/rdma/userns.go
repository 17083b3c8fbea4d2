package rdma

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUserNamespace means that no device events arrive in a network namespace. Sockets for
// them can be opened there, but the kernel sends uevents only to the network
// namespaces that the initial user namespace owns (uevent_net_init,
// lib/kobject_uevent.c). It sends the notifications of rdma netlink to the namespace of
// the device, which is the initial one if namespaces share devices.
var ErrUserNamespace = errors.New("the kernel sends device events only to network namespaces " +
	"of the initial user namespace")

// initialUserNamespace is the inode number of the initial user namespace
// (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const initialUserNamespace = 0xEFFFFFFD

// checkEvents returns ErrUserNamespace unless the initial user namespace owns the network
// namespace of the calling thread. The kernel does not return an owner outside the caller's
// user namespace (EPERM). That owner need not be the initial namespace, so checkEvents
// returns ErrUserNamespace in this case too.
func checkEvents() error {
	network, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("find the network namespace's owner: %w", err)
	}
	defer network.Close()
	fd, err := unix.IoctlRetInt(int(network.Fd()), unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) {
		return ErrUserNamespace
	}
	if err != nil {
		return fmt.Errorf("find the network namespace's owner: %w", os.NewSyscallError("ioctl NS_GET_USERNS", err))
	}
	defer unix.Close(fd)
	var owner unix.Stat_t
	if err := unix.Fstat(fd, &owner); err != nil {
		return fmt.Errorf("find the network namespace's owner: %w", os.NewSyscallError("fstat", err))
	}
	if owner.Ino != initialUserNamespace {
		return ErrUserNamespace
	}
	return nil
}
