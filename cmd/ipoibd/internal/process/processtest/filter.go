package processtest

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, seccomp(2).
const (
	offsetNr   = 0
	offsetArch = 4
)

// DenyFiles makes the process die of SIGSYS when any of its threads, present or
// future, opens a file on a disk or starts a program. On the signal, Go's runtime prints
// the stack of that thread. Open sockets, pipes and files continue to work. Files without
// a disk, such as those in /proc, may be opened; [Guard] records them.
func DenyFiles() (*Guard, error) {
	listener, err := install(filter(denied))
	if err != nil {
		return nil, err
	}
	g := &Guard{listener: listener}
	go g.watch()
	return g, nil
}

// install installs the filter for all threads and returns the descriptor from which its
// questions are read.
func install(program []unix.SockFilter) (int, error) {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // no_new_privs belongs to the thread that installs the filter
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, os.NewSyscallError("prctl", err)
	}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC |
		unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH |
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// filter is a program that asks about openat, traps the given calls, and traps every
// call of a foreign architecture, where the numbers have other meanings.
func filter(calls []uint32) []unix.SockFilter {
	prog := []unix.SockFilter{
		load(offsetArch),
		jumpEqual(auditArch, 1, 0),
		result(unix.SECCOMP_RET_TRAP),
		load(offsetNr),
		jumpEqual(unix.SYS_OPENAT, 0, 1), result(unix.SECCOMP_RET_USER_NOTIF),
	}
	for _, nr := range calls {
		prog = append(prog, jumpEqual(nr, 0, 1), result(unix.SECCOMP_RET_TRAP))
	}
	return append(prog, result(unix.SECCOMP_RET_ALLOW))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpEqual skips yes instructions if the loaded value is k, else no instructions.
func jumpEqual(k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func result(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
}
