// Package memlocktest holds a process to what the reset of a device promises:
// [DenyFiles] ends it when it opens a file on a disk or starts a program,
// [MajorFaults] counts the pages that it had to read from a disk, [ReadUsage] reads
// how much memory it has locked, and [DropCaches] makes the kernel forget all that
// it may.
//
// A seccomp filter sees numbers and no paths. So it holds the thread that calls
// openat and asks ([Guard]); it is the process itself that answers, which reads
// the path in its own memory. That is fit for a test, and no security.
//
// None of it can be undone, so a test that uses it has a process of its own.
package memlocktest
