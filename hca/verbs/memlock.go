package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// memlockLimit is what the process may lock, in bytes; the largest number where
// there is no limit.
func memlockLimit() uint64 {
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY}
	_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
	return limit.Cur
}

// explainLimit adds to the error of a registration what the limit of locked
// memory has to do with it. The kernel counts the registered pages of the whole
// process against RLIMIT_MEMLOCK, unless it has CAP_IPC_LOCK (ib_umem_get in
// drivers/infiniband/core/umem.c), and answers ENOMEM.
func explainLimit(err error, needed, limit uint64) error {
	if !errors.Is(err, hca.ErrNoMemory) || needed <= limit {
		return err
	}
	return fmt.Errorf("%w: %s", err, limitText(needed, limit))
}

// limitText says how many bytes must be locked, and how to allow them.
func limitText(needed, limit uint64) string {
	return fmt.Sprintf("registered memory comes to %d bytes, and RLIMIT_MEMLOCK is %d: give the process CAP_IPC_LOCK, "+
		"or raise the limit (ulimit -l, LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container)", needed, limit)
}
