package processtest

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// denied are the calls that start a program, or open a file without openat, which Go
// uses.
var denied = []uint32{
	unix.SYS_OPEN, unix.SYS_OPENAT2, unix.SYS_CREAT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_IO_URING_SETUP,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
}
