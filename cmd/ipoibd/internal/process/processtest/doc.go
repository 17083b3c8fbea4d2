// Package processtest checks the promises that the daemon makes for the reset of a device
// (R17): [DenyFiles] kills the process when it opens a file on a disk or starts a program,
// [MajorFaults] counts the pages that had to be read from a disk, [ReadUsage] returns how
// much memory is locked, and [DropCaches] empties the kernel's caches.
//
// A seccomp filter sees numbers, not paths. So the filter holds a thread that calls openat,
// and asks [Guard], a goroutine of the same process, which reads the path from the
// process's memory. That is good enough for a test; it is not a security measure.
//
// DenyFiles cannot be undone, so a test that uses it needs its own process.
package processtest
