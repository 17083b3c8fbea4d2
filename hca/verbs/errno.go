package verbs

import (
	"fmt"
	"syscall"

	"ipoibd/hca"
)

// The verbs for which some errnos have a special meaning, named as in libibverbs without
// the prefix.
const (
	verbOpen     = "open_device"
	verbCreateAH = "create_ah"
	verbPostSend = "post_send"
	verbPostRecv = "post_recv"
)

// rule maps errnos of one verb, or of all (""), to a sentinel.
type rule struct {
	verb     string
	sentinel error
	errnos   []syscall.Errno
}

// rules are searched in order. An errno without a rule maps to ErrNoMemory if it is
// [hca.Exhausted], else to ErrInvalid.
//
// Sources: the manual pages ibv_*(3) of rdma-core; drivers/infiniband/core
// (uverbs_cmd.c, uverbs_main.c, addr.c, cache.c) and sw/rxe of Linux.
var rules = []rule{
	// A post allocates nothing: providers (rxe, mlx5) return ENOMEM if the queue is full.
	{verbPostSend, hca.ErrQueueFull, []syscall.Errno{syscall.ENOMEM}},
	{verbPostRecv, hca.ErrQueueFull, []syscall.Errno{syscall.ENOMEM}},
	// The neighbour does not answer (addr.c); on rxe this takes about a second. Or there is no route.
	{verbCreateAH, hca.ErrTimeout, []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN}},
	// The GID's netdev is gone (cache.c); CreateAH then queries whether the device is gone too.
	{verbCreateAH, hca.ErrInvalid, []syscall.Errno{syscall.ENODEV}},
	// No device of that name, or it was removed while it was opened; ENOSYS: a kernel without RDMA
	// (ibv_get_device_list.3).
	{verbOpen, hca.ErrNoDevice, []syscall.Errno{syscall.ENOENT, syscall.ENODEV, syscall.ENXIO, syscall.ENOSYS}},
	// The firmware does not answer a command (mlx5 cmd.c).
	{"", hca.ErrTimeout, []syscall.Errno{syscall.ETIMEDOUT}},
	// uverbs_main.c returns EIO once the device is disassociated; rxe returns ENODEV once its netdev is gone.
	{"", hca.ErrIO, []syscall.Errno{syscall.EIO, syscall.ENODEV, syscall.ENXIO, syscall.ESHUTDOWN}},
	{"", hca.ErrBusy, []syscall.Errno{syscall.EBUSY}},
}

// sentinelOf returns the sentinel of the contract for an errno of a verb.
func sentinelOf(verb string, errno syscall.Errno) error {
	for _, r := range rules {
		for _, e := range r.errnos {
			if e == errno && (r.verb == "" || r.verb == verb) {
				return r.sentinel
			}
		}
	}
	if hca.Exhausted(errno) {
		return hca.ErrNoMemory
	}
	return hca.ErrInvalid
}

// failed returns the error of a verb that returned errno, or nil for 0. It wraps the sentinel
// and the errno.
func failed(verb, on string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return refused(verb, on, fmt.Errorf("%w: %w", sentinelOf(verb, errno), errno))
}

// failedNull returns the error of a verb that returned NULL. A provider that leaves errno 0
// could not allocate memory.
func failedNull(verb, on string, err error) error {
	errno, ok := err.(syscall.Errno) //nolint:errorlint // cgo returns the errno unwrapped
	if !ok || errno == 0 {
		errno = syscall.ENOMEM
	}
	return failed(verb, on, errno)
}

// refused adds the verb and the object to an error. It returns nil for nil.
func refused(verb, on string, err error) error {
	if err == nil {
		return nil
	}
	return &hca.VerbError{Verb: verb, On: on, Err: err}
}
