// Package memlock keeps the daemon in memory, so that the reset of an HCA waits
// for no disk: the system disk, and with it the daemon's own program, may lie
// behind this very HCA.
//
// [Lock] locks what is mapped and what will be, each page from its first touch
// on (mlockall with MCL_ONFAULT): the Go runtime reserves address space by 64 MiB
// and more, which would all be filled otherwise. A page of the heap or of a stack
// that is touched for the first time is made out of nothing, and needs no disk.
// One of the program's code, its constants or a shared library is read from its
// file; these are read at once, whole. What remains are minor faults.
//
// The runtime gives unused memory back as before: where the kernel refuses
// MADV_DONTNEED on locked memory, it maps the range anew.
//
// # Permission
//
// Nothing is locked unless everything may be. With a finite RLIMIT_MEMLOCK and no
// capability a process that locks its future mappings gets EAGAIN for the first
// one beyond the limit, which the Go runtime does not survive. CAP_IPC_LOCK
// counts in the initial user namespace only, whatever the process's own
// capability set says; so the kernel is asked, by a lock beyond the limit that is
// taken back at once.
package memlock
