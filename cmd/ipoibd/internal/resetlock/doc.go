// Package resetlock is the shell of package locks: it lets the processes of a host
// that use one HCA reset it together, by the kernel's file locks. A [Coordinator] is
// one process's share in one device.
//
// One goroutine, the owner, steps the machine and makes its system calls. None of
// them blocks: locks are tried for, the record fits in a page of tmpfs that was
// reserved at start. Config.Reset runs on a goroutine of its own.
//
//	goroutine | how many | ends with
//	owner     | 1        | Close
//	follow    | 1        | the inotify descriptor, which the owner closes
//	reset     | at most 1| Config.Reset returns
//
// # The directory
//
// It is made with mode 0700, the files with mode 0600. A directory or file that
// is a symbolic link, that belongs to neither root nor the daemon's user, or that
// others may write is refused. Processes in containers take part where the directory
// is mounted into them. Who can open the files can block a reset, or request one.
// The directory should be on tmpfs, or a reset may wait for the disk that lies behind
// the device ([OnDisk]).
//
// All descriptors are opened by [Join]; a reset opens nothing (R17). Only to name the
// processes that hold a device beyond the grace period, when the reset has failed,
// /proc is read.
//
// # Limits
//
// Files that are removed under a daemon do not reach the others any more: the daemon
// says so, and resets nothing until it is restarted. A device that takes the place of
// another one (allow_other_device) keeps the locks of the first until then.
package resetlock
