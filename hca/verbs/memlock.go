package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// memlockLimit returns how many bytes the process may lock, or the largest number if there
// is no limit.
func memlockLimit() uint64 {
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY}
	_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
	return limit.Cur
}

// explainLimit adds an explanation to the error of a registration that exceeds the limit of
// locked memory. Unless the process has CAP_IPC_LOCK, the kernel counts all its registered
// pages against RLIMIT_MEMLOCK and returns ENOMEM (ib_umem_get in
// drivers/infiniband/core/umem.c).
func explainLimit(err error, needed, limit uint64) error {
	if !errors.Is(err, hca.ErrNoMemory) || needed <= limit {
		return err
	}
	return fmt.Errorf("%w: %s", err, limitText(needed, limit))
}

// limitText says how many bytes must be locked, and how to allow them.
func limitText(needed, limit uint64) string {
	return fmt.Sprintf("registered memory would be %d bytes, but RLIMIT_MEMLOCK is %d: give the process CAP_IPC_LOCK, "+
		"or raise the limit (ulimit -l, LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container)",
		needed, limit)
}
