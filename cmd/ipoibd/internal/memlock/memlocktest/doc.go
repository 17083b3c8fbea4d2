// Package memlocktest holds a process to what the reset of a device promises:
// [DenyFiles] ends it when it opens a file or starts a program, [MajorFaults]
// counts the pages that it had to read from a disk, and [DropCaches] makes the
// kernel forget all that it may.
//
// None of it can be undone, so a test that uses it has a process of its own.
package memlocktest
