package memlocktest

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// denied opens a file, otherwise than Go does, or starts a program.
var denied = []uint32{
	unix.SYS_OPEN, unix.SYS_OPENAT2, unix.SYS_CREAT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_IO_URING_SETUP,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
}
