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
// # Limits
//
// Files that are removed under a daemon do not reach the others any more: the daemon reports
// that, and resets nothing until it is restarted. A device that takes the place of another
// one (allow_other_device) keeps the locks of the first until then.
package resetlock
