package memlocktest

import (
	"fmt"
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

// DenyFiles makes the kernel end the process with SIGSYS at its next attempt to
// open a file or to start a program, in any thread, present or future. Go's
// runtime answers the signal with the stack of the culprit. Sockets, pipes and
// files that are open go on to work.
//
// A filter sees numbers and no paths, so it makes no difference between a
// regular file and one of /proc, /sys or /dev.
func DenyFiles() error {
	program := filter(denied)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // no_new_privs is of the thread that installs
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %d has a filter of its own", thread)
	}
	return nil
}

// filter is the program that traps the calls, and all those of a foreign
// architecture, whose numbers mean something else.
func filter(calls []uint32) []unix.SockFilter {
	prog := []unix.SockFilter{
		load(offsetArch),
		jumpEqual(auditArch, 1, 0),
		result(unix.SECCOMP_RET_TRAP),
		load(offsetNr),
	}
	for _, nr := range calls {
		prog = append(prog, jumpEqual(nr, 0, 1), result(unix.SECCOMP_RET_TRAP))
	}
	return append(prog, result(unix.SECCOMP_RET_ALLOW))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpEqual skips so many instructions if the value loaded is k, or is not.
func jumpEqual(k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func result(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
}
