// Package resetlock is the shell of package reset: it lets the processes of a host that use
// one HCA reset it together, by the kernel's file locks. [Locks] is one process's share in
// one device. It makes the system calls, none of which blocks: locks are tried for, and the
// record fits in a page of tmpfs that was reserved at the start. Its only goroutine reads
// the inotify descriptor until Close.
//
// # The directory
//
// It is made with mode 0700, the files with mode 0600. A directory or file is refused if it
// is a symbolic link, belongs to neither root nor the daemon's user, or is writable by
// others. Processes in containers take part if the directory is mounted into them. A
// process that can open the files can block a reset, or request one. The directory should be
// on tmpfs, or a reset may wait for the disk that lies behind the device ([OnDisk]).
//
// [Open] opens all descriptors; a reset opens no file (R17). Only after a reset has failed
// is /proc read, to name the processes that hold the device.
//
// # Files that were removed
//
// Before each step, except while it leads a reset, a process checks whether its files were
// removed. If so, it opens the files that now have these names, or creates them, and takes its
// shared lock there before it releases the former one. The locks still exclude each other:
//
//   - A process replaces its files only if no other one leads a reset with them.
//   - A leader whose files are removed before the reset begins ends the attempt.
//   - A process that has replaced its files also excludes the holders of the former lock on
//     use, such as a process that was stopped meanwhile.
//   - The record is copied, so that a reset that was cut short is completed.
//
// Until the files can be created again, resets fail with that reason, and processes that wait
// for a leader that has died go on waiting.
//
// # Limits
//
// A process that starts after a removal cannot see the locks of one that has not replaced its
// files yet, because it is stopped or resets the device at that moment. The same holds for
// files that were removed twice meanwhile, or moved away instead. A device that takes the
// place of another one (allow_other_device) keeps the locks of the first one until the daemon
// is restarted.
package resetlock
