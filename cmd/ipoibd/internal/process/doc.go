// Package process provides what the daemon needs of its host as a process: memory that
// stays in RAM, and a log that neither blocks nor floods. Both serve the reset of an HCA,
// which must not wait for a disk (R17): the system disk may be behind this very HCA.
//
// # Memory
//
// [LockMemory] locks what is mapped and what will be, each page from its first use on
// (mlockall with MCL_ONFAULT). Without ONFAULT the kernel would fill the address space
// that the Go runtime reserves in steps of at least 64 MiB. The first use of a page of
// heap or stack needs no disk. A page of code, constants or a shared library is read from
// its file, so LockMemory reads all of these at once. Only minor faults remain. The
// runtime still returns unused memory: where the kernel refuses MADV_DONTNEED on locked
// memory, the runtime maps the range again.
//
// Memory is locked either completely or not at all. With a finite RLIMIT_MEMLOCK and
// without the capability, a process that locks its future mappings gets EAGAIN for the
// first mapping beyond the limit, which the Go runtime does not survive. CAP_IPC_LOCK
// counts only in the initial user namespace, whatever the process's own capability set
// says. So LockMemory asks the kernel: it locks more than the limit, and unlocks it again.
//
// # Log
//
// [LogWriter] queues lines, and a separate goroutine writes them, because the reader of
// the log may stall: its disk may be behind the HCA that is being reset, and a pipe that
// is not read soon fills up. A line that finds the queue full is lost and counted; the
// count is logged as soon as the reader continues.
//
// [LogHandler] limits the rate of each message and of all messages together, because a
// link that flaps, or a container that makes it flap, must not fill the disk. The last
// line of a burst always appears.
package process
