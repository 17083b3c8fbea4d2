package sandbox

import (
	"os"
	"slices"
	"unsafe"

	"github.com/moby/sys/capability"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, seccomp(2); an argument's is the offset of its lower half.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArg0 = 16
	argument   = 8 // bytes of each argument
)

// Ioctls that x/sys/unix lacks (linux/fs.h, asm-generic/sockios.h).
const (
	fiFreeze   = 0xc0045877 // FIFREEZE
	fiThaw     = 0xc0045878 // FITHAW
	shutDown   = 0x8004587d // FS_IOC_SHUTDOWN: the file system
	setFlags32 = 0x40046602 // FS_IOC32_SETFLAGS
	setXattr   = 0x401c5820 // FS_IOC_FSSETXATTR: flags and project
	setOwner   = 0x8901     // FIOSETOWN
)

// namespaces are the flags of clone(2) that make namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// denied are the system calls that fail with EPERM.
var denied = slices.Concat(deniedHere, []uint32{
	// other programs and processes
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_TKILL,
	unix.SYS_PROCESS_MRELEASE, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
	unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SETPGID,
	// memory, semaphores and queues that processes share by a name
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL,
	unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
	unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
	unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	// namespaces and mounts
	unix.SYS_UNSHARE,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	// the kernel
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
	// parts of it that are large and often attacked
	unix.SYS_USERFAULTFD, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	// files without a path
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	// the machine
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	// owners, modes and attributes of files, which Landlock does not restrict
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR, unix.SYS_UTIMENSAT,
	// another identity
	unix.SYS_SETUID, unix.SYS_SETREUID, unix.SYS_SETRESUID, unix.SYS_SETFSUID,
	unix.SYS_SETGID, unix.SYS_SETREGID, unix.SYS_SETRESGID, unix.SYS_SETFSGID,
	unix.SYS_SETGROUPS, unix.SYS_PERSONALITY,
})

// rule refuses a call for some values of an argument, with EPERM. It reads only the lower half, which is
// all that the kernel reads of these arguments.
type rule struct {
	nr    uint32
	arg   uint32
	only  []uint32 // values that are allowed, or
	never []uint32 // values that are not
	given uint32   // applies only to calls whose first argument is this; 0: to all
}

// rules returns the rules of a policy for a process with a PID, as the process itself sees it.
func (p Policy) rules(pid uint32) []rule {
	protocols := []uint32{unix.NETLINK_ROUTE, unix.NETLINK_INET_DIAG, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_RDMA}
	if p.FastPath { // which must know of IPsec
		protocols = append(protocols, unix.NETLINK_XFRM)
	}
	out := []rule{
		{nr: unix.SYS_SETNS, arg: 1, only: []uint32{unix.CLONE_NEWNET}},
		{nr: unix.SYS_IOCTL, arg: 1, never: []uint32{
			unix.TIOCSTI, unix.TIOCLINUX, // make input for the terminal's next reader
			fiFreeze, fiThaw, shutDown,
			unix.FS_IOC_SETFLAGS, setFlags32, setXattr, unix.FS_IOC_ENABLE_VERITY, // what denied calls do to files
			setOwner, unix.SIOCSPGRP, // signals to other processes
		}},
		// Signals to other processes, and delays for those that open a file.
		{nr: unix.SYS_FCNTL, arg: 1, never: []uint32{
			unix.F_SETOWN, unix.F_SETOWN_EX, unix.F_SETSIG,
			unix.F_SETLEASE, unix.F_NOTIFY,
		}},
		// The hash maps of the fast path cannot be mapped: bpf(2) changes them.
		{nr: unix.SYS_BPF, arg: 0, only: []uint32{unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_OBJ_GET_INFO_BY_FD}},
		{nr: unix.SYS_PRLIMIT64, arg: 0, only: []uint32{0, pid}},
		{nr: unix.SYS_SOCKET, arg: 0, only: []uint32{
			unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET,
		}},
		{nr: unix.SYS_SOCKET, given: unix.AF_NETLINK, arg: 2, only: protocols},
	}
	for _, signal := range []uint32{
		unix.SYS_KILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
	} {
		out = append(out, rule{nr: signal, arg: 0, only: []uint32{pid}})
	}
	return out
}

var refuse = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}

// program returns the part of the filter that applies the rule. The number of the call is in the
// accumulator before it and after it.
func (r rule) program() []bpf.Instruction {
	load := func(arg uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offsetArg0 + arg*argument, Size: 4} }
	body := []bpf.Instruction{load(r.arg)}
	for i, v := range r.only {
		body = append(body, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(r.only) - i)})
	}
	if r.only != nil {
		body = append(body, refuse)
	}
	for _, v := range r.never {
		body = append(body, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: v, SkipTrue: 1}, refuse)
	}
	if r.given != 0 {
		other := bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.given, SkipTrue: uint8(len(body))}
		body = append([]bpf.Instruction{load(0), other}, body...)
	}
	body = append(body, bpf.LoadAbsolute{Off: offsetNr, Size: 4})
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.nr, SkipTrue: uint8(len(body))}}, body...)
}

// filter returns the seccomp filter of a policy for the process with a PID.
func (p Policy) filter(pid int) []bpf.Instruction {
	absent := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	prog := []bpf.Instruction{
		// Calls of other architectures have other numbers.
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		refuse,
		bpf.LoadAbsolute{Off: offsetNr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: foreignBit, SkipTrue: 1},
		absent,
		// A filter cannot read the flags of clone3. Without it, the C library calls clone.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		absent,
	}
	calls := slices.Clone(denied)
	if !p.FastPath { // the programs were loaded before, and their maps are memory
		calls = append(calls, unix.SYS_BPF)
	}
	if !slices.Contains(p.Capabilities, capability.CAP_SYS_ADMIN) {
		calls = append(calls, unix.SYS_SETNS)
	}
	for _, nr := range calls {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1}, refuse)
	}
	for _, r := range p.rules(uint32(pid)) {
		prog = append(prog, r.program()...)
	}
	return append(prog,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1},
		refuse,
		allow,
	)
}

// restrictCalls installs the filter of a policy for all threads.
func (p Policy) restrictCalls() error {
	raw, err := bpf.Assemble(p.filter(os.Getpid()))
	if err != nil {
		return err
	}
	return install(raw)
}

// install installs a filter for all threads.
func install(raw []bpf.RawInstruction) error {
	prog := unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
