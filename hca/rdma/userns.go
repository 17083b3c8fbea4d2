package rdma

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUserNamespace says that no events of devices arrive in a network namespace. Sockets
// for them can be opened there, but the kernel sends uevents to those network
// namespaces only that the initial user namespace owns (uevent_net_init,
// lib/kobject_uevent.c), and rdma netlink's notifications to the namespace of the
// device, which is the initial one where namespaces share devices.
var ErrUserNamespace = errors.New("the kernel sends no events of devices to a network namespace that a user namespace owns")

// initialUserNamespace is the inode number of the initial user namespace
// (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const initialUserNamespace = 0xEFFFFFFD

// checkEvents returns ErrUserNamespace, unless the initial user namespace owns the
// network namespace of the calling thread. One outside of the caller's own may be the
// initial one or not: then events may not arrive, either.
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
