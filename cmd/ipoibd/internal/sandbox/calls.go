package sandbox

import (
	"os"
	"slices"
	"unsafe"

	"github.com/moby/sys/capability"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, seccomp(2); those of arguments are of their lower halves.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArg0 = 16
	offsetArg1 = 24
)

// namespaces are the flags of clone(2) that make namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// denied are the system calls that fail with EPERM.
var denied = slices.Concat(deniedHere, []uint32{
	// other programs and processes
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	// namespaces and mounts
	unix.SYS_UNSHARE,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	// the kernel
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
	// parts of it that are large and often attacked
	unix.SYS_USERFAULTFD, unix.SYS_PERF_EVENT_OPEN, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_FANOTIFY_INIT,
	unix.SYS_BPF, // the programs were loaded before, and their maps are memory
	// files without a path
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	// the machine
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	// owners, modes and attributes of files, which Landlock does not restrict; sockets get an owner by fchown
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_UTIMENSAT,
	// another identity
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETFSUID,
	unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_PERSONALITY,
})

// filter returns the seccomp filter of a policy.
func (p Policy) filter() []bpf.Instruction {
	fail := func(errno unix.Errno) bpf.Instruction {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	prog := []bpf.Instruction{
		// Calls of other architectures have other numbers.
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		fail(unix.EPERM),
		bpf.LoadAbsolute{Off: offsetNr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: foreignBit, SkipTrue: 1},
		fail(unix.ENOSYS),
		// A filter cannot read the flags of clone3. Without it, the C library calls clone.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		fail(unix.ENOSYS),
	}
	calls := denied
	if !slices.Contains(p.Capabilities, capability.CAP_SYS_ADMIN) {
		calls = append(slices.Clone(calls), unix.SYS_SETNS)
	}
	for _, nr := range calls {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1}, fail(unix.EPERM))
	}
	return append(prog,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SETNS, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offsetArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.CLONE_NEWNET, SkipTrue: 1},
		fail(unix.EPERM),
		allow,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_IOCTL, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offsetArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.TIOCSTI, SkipTrue: 1}, // input for the terminal's next reader
		fail(unix.EPERM),
		allow,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1},
		fail(unix.EPERM),
		allow,
	)
}

// restrictCalls installs the filter of a policy for all threads.
func (p Policy) restrictCalls() error {
	raw, err := bpf.Assemble(p.filter())
	if err != nil {
		return err
	}
	return install(raw)
}

// install installs a filter for all threads.
func install(raw []bpf.RawInstruction) error {
	prog := unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
