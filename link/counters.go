package link

import (
	"errors"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Counters are the counts of this process since Open or Import.
type Counters struct {
	// Read and Written count the frames that ReadBatch returned, and those from
	// WriteVectors that the kernel accepted.
	Read, Written uint64
	Drops         Drops
}

// KernelCounters are the kernel's counters of the interface (struct rtnl_link_stats64). Tx
// is the direction from the host to this process; TxDropped counts frames that found the TAP's queue full or
// detached. They survive the process.
type KernelCounters = netlink.LinkStatistics

// Drops are frames lost between the TAP and this process, by reason.
type Drops struct {
	ReadTooLong  uint64 // longer than the caller's buffer
	WriteInvalid uint64 // EINVAL: shorter than its headers, or a wrong virtio header
	WriteDown    uint64 // EIO: the interface is down
	WriteNoMem   uint64 // ENOBUFS, ENOMEM, EAGAIN
	WriteOther   uint64 // any other error
}

// tally holds the process's own counts while they change.
type tally struct {
	read, written, readTooLong                      atomic.Uint64
	writeInvalid, writeDown, writeNoMem, writeOther atomic.Uint64
}

// refused counts a frame that the kernel did not accept.
func (t *tally) refused(err error) {
	switch {
	case errors.Is(err, unix.EINVAL):
		t.writeInvalid.Add(1)
	case errors.Is(err, unix.EIO):
		t.writeDown.Add(1)
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
		t.writeNoMem.Add(1)
	default:
		t.writeOther.Add(1)
	}
}

func (t *tally) snapshot() Counters {
	return Counters{
		Read:    t.read.Load(),
		Written: t.written.Load(),
		Drops: Drops{
			ReadTooLong:  t.readTooLong.Load(),
			WriteInvalid: t.writeInvalid.Load(),
			WriteDown:    t.writeDown.Load(),
			WriteNoMem:   t.writeNoMem.Load(),
			WriteOther:   t.writeOther.Load(),
		},
	}
}
