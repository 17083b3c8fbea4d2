package verbs

import (
	"fmt"
	"syscall"

	"ipoibd/hca"
)

// The verbs whose errnos mean something of their own, named as in libibverbs
// without the prefix.
const (
	verbOpen     = "open_device"
	verbCreateAH = "create_ah"
	verbPostSend = "post_send"
	verbPostRecv = "post_recv"
)

// rule gives errnos of one verb, or of all (""), a sentinel.
type rule struct {
	verb     string
	sentinel error
	errnos   []syscall.Errno
}

// rules are searched in order. An errno that no rule names is [hca.Exhausted], or else
// a refusal.
//
// Sources: the manual pages ibv_*(3) of rdma-core; drivers/infiniband/core
// (uverbs_cmd.c, uverbs_main.c, addr.c, cache.c) and sw/rxe of Linux.
var rules = []rule{
	// A post allocates nothing: ENOMEM is how providers (rxe, mlx5) say that the queue is full.
	{verbPostSend, hca.ErrQueueFull, []syscall.Errno{syscall.ENOMEM}},
	{verbPostRecv, hca.ErrQueueFull, []syscall.Errno{syscall.ENOMEM}},
	// The neighbour is resolved (addr.c), on rxe for about a second; the others say the same of a route.
	{verbCreateAH, hca.ErrTimeout, []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN}},
	// The GID's netdev went (cache.c); whether the device went too is asked then.
	{verbCreateAH, hca.ErrInvalid, []syscall.Errno{syscall.ENODEV}},
	// No device of that name, it went while it was opened, or (ibv_get_device_list.3, ENOSYS) a kernel without any.
	{verbOpen, hca.ErrNoDevice, []syscall.Errno{syscall.ENOENT, syscall.ENODEV, syscall.ENXIO, syscall.ENOSYS}},
	// A firmware that does not answer a command (mlx5 cmd.c).
	{"", hca.ErrTimeout, []syscall.Errno{syscall.ETIMEDOUT}},
	// uverbs_main.c answers EIO once the device is disassociated; rxe ENODEV once its netdev is gone.
	{"", hca.ErrIO, []syscall.Errno{syscall.EIO, syscall.ENODEV, syscall.ENXIO, syscall.ESHUTDOWN}},
	{"", hca.ErrBusy, []syscall.Errno{syscall.EBUSY}},
}

// sentinelOf returns the sentinel of the contract that an errno of a verb
// stands for.
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

// failed is the error of a verb that returned errno, nil for 0. It wraps the
// sentinel and the errno.
func failed(verb, on string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return refused(verb, on, fmt.Errorf("%w: %w", sentinelOf(verb, errno), errno))
}

// failedNull is the error of a verb that returned NULL; a provider that does
// not say why (0) could not allocate.
func failedNull(verb, on string, err error) error {
	errno, ok := err.(syscall.Errno) //nolint:errorlint // cgo gives the errno bare
	if !ok || errno == 0 {
		errno = syscall.ENOMEM
	}
	return failed(verb, on, errno)
}

// refused says which verb an error is of, nil included.
func refused(verb, on string, err error) error {
	if err == nil {
		return nil
	}
	return &hca.VerbError{Verb: verb, On: on, Err: err}
}
