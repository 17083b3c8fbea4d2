package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/moby/sys/capability"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	programs "ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/link/linktest/nstest"
)

// childEnv makes the test binary a process that enters a sandbox and tries what it may not; its value
// is an order.
const childEnv = "TEST_IPOIBD_SANDBOX_CHILD"

// order says what a child does.
type order struct {
	Policy  *Policy // nil: it stays outside
	User    *User   // as whom it enters
	Files   bool    // it enters only the part of the sandbox that is Landlock
	Dir     string  // in which it may write
	Outside string  // in which it may not
	Delete  string  // a file that it deletes first
	Loads   bool    // it loads eBPF programs first
	Lacks   bool    // it makes the kernel one without Landlock, and gives up CAP_SETPCAP

	// The parent's, which is outside.
	Other    int    // PID
	Abstract string // socket
}

// answer is what a child reports.
type answer struct {
	PIDs, Args  []string
	Environment []string
	Results     map[string]string // of each deed; empty: it succeeded
	Missing     []string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const pidEnv = "TEST_IPOIBD_SANDBOX_PID" // of the first start

func child(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	a := answer{Args: os.Args, Results: map[string]string{}}
	if o.Delete != "" {
		_ = os.Remove(o.Delete) // the second start finds it gone
	}
	if os.Getenv(pidEnv) == "" {
		if o.Lacks {
			if err := lack(); err != nil {
				return err
			}
		}
		os.Setenv(pidEnv, strconv.Itoa(os.Getpid()))
	}
	switch {
	case o.Files:
		_, a.Missing = o.Policy.restrictFiles()
	case o.Policy != nil:
		s, err := Enter(*o.Policy, func() (*User, error) { return o.User, nil }, o.load)
		if err != nil {
			return err
		}
		a.Missing = s.Missing
		if o.Loads {
			a.Results["use loaded programs"] = fmt.Sprint(use(s.Carried.Programs))
		}
	}
	a.PIDs, a.Environment = []string{os.Getenv(pidEnv), strconv.Itoa(os.Getpid())}, os.Environ()
	for _, d := range deeds {
		a.Results[d.name] = fmt.Sprint(onThreads(func() error { return d.do(o) }))
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// lack makes Landlock's system calls fail as they do in a kernel without it, and gives up CAP_SETPCAP.
// The calling goroutine keeps its thread, as Enter expects it.
func lack() error {
	runtime.LockOSThread()
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_LANDLOCK_CREATE_RULESET, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return err
	}
	if err := install(raw); err != nil {
		return err
	}
	return set(func(caps capability.Capabilities) { caps.Unset(capability.CAPS, capability.CAP_SETPCAP) })
}

// onThreads calls f on several threads at the same time, and returns their one result.
func onThreads(f func() error) error {
	const n = 4
	results := make(chan error, n)
	together := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread() // not unlocked: the thread ends
			<-together
			results <- f()
		}()
	}
	close(together)
	err := <-results
	for range n - 1 {
		if other := <-results; fmt.Sprint(other) != fmt.Sprint(err) {
			return fmt.Errorf("threads differ: %w, %w", err, other)
		}
	}
	return err
}

func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func opened(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// let makes a call of fcntl(2) for a file.
func let(o order, command, value int) error {
	fd, err := unix.Open(filepath.Join(o.Dir, "file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), command, value)
	return errors.Join(err, unix.Close(fd))
}

func socket(family, protocol int) error {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// connected connects to a UNIX socket.
func connected(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}

// Results of deeds.
var (
	done   = fmt.Sprint(error(nil))
	eperm  = unix.EPERM.Error()
	eacces = unix.EACCES.Error()
)

// deeds are what a child does: the result outside as root, "" if that depends on the machine, and the
// one in every sandbox, unless may says that this one allows the deed.
var deeds = []struct {
	name            string
	do              func(o order) error
	outside, inside string
	may             func(o order) bool
}{
	{"read a file that all may read", func(o order) error { return opened(filepath.Join(o.Outside, "file"), unix.O_RDONLY) }, done, eacces, nil},
	{"list a directory", func(o order) error { return opened(o.Outside, unix.O_RDONLY|unix.O_DIRECTORY) }, done, eacces, nil},
	{"write to a file", func(o order) error { return opened(filepath.Join(o.Outside, "file"), unix.O_WRONLY) }, done, eacces, nil},
	{"truncate a file", func(o order) error { return unix.Truncate(filepath.Join(o.Outside, "file"), 0) }, done, eacces, nil},
	{"create a file", func(o order) error { return opened(filepath.Join(o.Outside, "new"), unix.O_WRONLY|unix.O_CREAT) }, done, eacces, nil},
	{"reach a file by a link", func(o order) error { return opened(filepath.Join(o.Dir, "link"), unix.O_RDONLY) }, done, eacces, nil},
	{"open another device", func(order) error { return opened("/dev/zero", unix.O_RDONLY) }, done, eacces, nil},
	{"write to /proc/self", func(order) error { return opened("/proc/self/comm", unix.O_WRONLY) }, done, eacces, nil},
	{"read in its directory", func(o order) error { return opened(filepath.Join(o.Dir, "file"), unix.O_RDONLY) }, done, done, nil},
	{"write in its directory", func(o order) error { return opened(filepath.Join(o.Dir, "new"), unix.O_WRONLY|unix.O_CREAT) }, done, done, nil},
	{"read /proc", func(order) error { return opened("/proc/self/maps", unix.O_RDONLY) }, done, done, nil},
	{"open the TUN device", func(order) error { return opened("/dev/net/tun", unix.O_RDWR) }, done, done, nil},
	{"change the network", setLoopbackUp, done, done, nil},
	{"open a raw socket", func(order) error { return socket(unix.AF_PACKET, 0) }, done, done, nil},

	{"start a program", func(order) error {
		_, err := syscall.ForkExec("/proc/self/exe", []string{"x", "-test.run=^$"}, &syscall.ProcAttr{Env: []string{}})
		return err
	}, done, eperm, nil},
	{"gain a capability", func(order) error {
		return set(func(caps capability.Capabilities) { caps.Set(capability.CAPS, capability.CAP_SYS_ADMIN) })
	}, done, eperm, with(capability.CAP_SYS_ADMIN)},
	{"keep a capability", func(o order) error {
		return keeps(capability.PERMITTED, o)
	}, "has more", done, nil},
	{"inherit a capability", func(o order) error {
		return keeps(capability.BOUNDING, o)
	}, "has more", done, nil},
	{"read a file whose mode forbids it", func(o order) error { return opened(filepath.Join(o.Dir, "secret"), unix.O_RDONLY) }, done, eacces, nil},
	{"change the user", func(order) error { return call(unix.SYS_SETRESUID, ^uintptr(0), ^uintptr(0), ^uintptr(0)) }, done, eperm, nil},
	{"make a device node", func(o order) error { return unix.Mknod(filepath.Join(o.Dir, "node"), unix.S_IFCHR|0o600, 1<<8|3) }, "", eacces, nil},
	{"mount", func(o order) error { return unix.Mount("none", o.Dir, "", unix.MS_PRIVATE, "") }, "", eperm, nil},
	{"make a user namespace", func(order) error { return call(unix.SYS_UNSHARE, 0) }, done, eperm, nil},
	{"enter a namespace", func(order) error { return unix.Setns(-1, unix.CLONE_NEWNET) }, unix.EBADF.Error(), eperm, with(capability.CAP_SYS_ADMIN)},
	{"trace a process", func(order) error { return call(unix.SYS_PTRACE, 0x4200, ^uintptr(0), 0, 0) }, unix.ESRCH.Error(), eperm, nil},
	{"read another process", func(order) error { return call(unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid()), 0, 0, 0, 0, 0) }, done, eperm, nil},
	{"use io_uring", func(order) error { return call(unix.SYS_IO_URING_SETUP, 0, 0) }, unix.EFAULT.Error(), eperm, nil},
	{"use keys", func(order) error { return call(unix.SYS_KEYCTL, 0, ^uintptr(2), 0) }, done, eperm, nil},
	{"count events", func(order) error { return call(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0) }, unix.EFAULT.Error(), eperm, nil},
	{"handle page faults", func(order) error { return call(unix.SYS_USERFAULTFD, ^uintptr(0)) }, unix.EINVAL.Error(), eperm, nil},
	{"open a file by its handle", func(order) error { return call(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0), 0, 0) }, "", eperm, nil},
	{"load a module", func(order) error { return call(unix.SYS_FINIT_MODULE, ^uintptr(0), 0, 0) }, "", eperm, nil},
	{"change the root directory", func(order) error { return call(unix.SYS_CHROOT, uintptr(unsafe.Pointer(&[]byte("/nowhere\x00")[0]))) }, unix.ENOENT.Error(), eperm, nil},
	{"make a namespace with a process", func(order) error {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.CLONE_NEWUSER|unix.CLONE_THREAD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return fmt.Errorf("process %d", pid)
	}, unix.EINVAL.Error(), eperm, nil},
	{"change the mode of a file", func(o order) error { return unix.Chmod(filepath.Join(o.Outside, "file"), 0o644) }, done, eperm, nil},
	{"change the owner of a file", func(o order) error { return unix.Lchown(filepath.Join(o.Outside, "file"), -1, -1) }, done, eperm, nil},
	{"change the times of a file", func(o order) error {
		return unix.UtimesNano(filepath.Join(o.Outside, "file"), make([]unix.Timespec, 2))
	}, done, eperm, nil},
	{"change the attributes of a file", func(o order) error {
		return unix.Removexattr(filepath.Join(o.Outside, "file"), "user.nothing")
	}, "", eperm, nil},
	{"bpf: load a socket filter", loadSocketFilter, done, eperm, nil},
	{"bpf: load a program for a tracepoint", func(order) error { return bpfCall(unix.BPF_PROG_LOAD, unix.BPF_PROG_TYPE_RAW_TRACEPOINT) }, "", eperm, nil},
	{"bpf: attach to a tracepoint", func(order) error { return bpfCall(unix.BPF_RAW_TRACEPOINT_OPEN) }, "", eperm, nil},
	{"bpf: open another's program", func(order) error { return bpfCall(unix.BPF_PROG_GET_FD_BY_ID, noID) }, unix.ENOENT.Error(), eperm, nil},
	{"bpf: open another's map", func(order) error { return bpfCall(unix.BPF_MAP_GET_FD_BY_ID, noID) }, unix.ENOENT.Error(), eperm, nil},
	{"bpf: open another's types", func(order) error { return bpfCall(unix.BPF_BTF_GET_FD_BY_ID, noID) }, unix.ENOENT.Error(), eperm, nil},
	{"bpf: open another's link", func(order) error { return bpfCall(unix.BPF_LINK_GET_FD_BY_ID, noID) }, unix.ENOENT.Error(), eperm, nil},
	{"bpf: list programs", func(order) error { return bpfCall(unix.BPF_PROG_GET_NEXT_ID, noID) }, unix.EINVAL.Error(), eperm, nil},
	{"bpf: run a program", func(order) error { return bpfCall(unix.BPF_PROG_TEST_RUN, noFD) }, unix.EBADF.Error(), eperm, nil},
	{"bpf: attach a program", func(order) error { return bpfCall(unix.BPF_PROG_ATTACH, noFD, noFD, unix.BPF_CGROUP_INET_INGRESS) }, "", eperm, nil},
	{"bpf: create a link", func(order) error { return bpfCall(unix.BPF_LINK_CREATE, noFD, noFD, unix.BPF_CGROUP_INET_INGRESS) }, unix.EBADF.Error(), eperm, nil},
	{"bpf: create a map", func(order) error { return bpfCall(unix.BPF_MAP_CREATE, unix.BPF_MAP_TYPE_ARRAY, 4, 4, 0) }, unix.EINVAL.Error(), eperm, nil},
	{"bpf: create an iterator", func(order) error { return bpfCall(unix.BPF_ITER_CREATE, noFD) }, unix.EBADF.Error(), eperm, nil},
	{"bpf: change a map", func(order) error { return bpfCall(unix.BPF_MAP_UPDATE_ELEM, noFD) }, unix.EBADF.Error(), eperm, func(o order) bool { return o.Policy.FastPath }},
	{"use IPsec", func(order) error { return socket(unix.AF_NETLINK, unix.NETLINK_XFRM) }, done, eperm, func(o order) bool { return o.Policy.FastPath }},
	{"bpf: a command that does not exist", func(order) error { return call(unix.SYS_BPF, ^uintptr(0), 0, 0) }, "", eperm, nil},
	{"type into a terminal", func(order) error { return unix.IoctlSetInt(-1, unix.TIOCSTI, 0) }, unix.EBADF.Error(), eperm, nil},
	{"signal another process", func(o order) error { return unix.Kill(o.Other, 0) }, done, eperm, nil},
	{"signal a thread of another process", func(o order) error { return unix.Tgkill(o.Other, o.Other, 0) }, done, eperm, nil},
	{"signal all processes", func(order) error { return unix.Kill(-1, 0) }, done, eperm, nil},
	{"signal itself", func(order) error { return unix.Kill(os.Getpid(), 0) }, done, done, nil},
	{"signal by descriptor", func(order) error { return call(unix.SYS_PIDFD_SEND_SIGNAL, ^uintptr(0)) }, unix.EBADF.Error(), eperm, nil},
	{"limit another process", func(o order) error {
		var old unix.Rlimit
		return unix.Prlimit(o.Other, unix.RLIMIT_CORE, nil, &old)
	}, done, eperm, nil},
	{"limit itself", func(order) error {
		var old unix.Rlimit
		return unix.Prlimit(0, unix.RLIMIT_CORE, nil, &old)
	}, done, done, nil},
	{"schedule another process", func(o order) error { return unix.Setpriority(unix.PRIO_PROCESS, o.Other, 0) }, done, eperm, nil},
	{"move the pages of another process", func(o order) error { return call(unix.SYS_MIGRATE_PAGES, uintptr(o.Other), 0, 0, 0) }, "", eperm, nil},
	{"release the memory of another process", func(order) error { return call(unix.SYS_PROCESS_MRELEASE, ^uintptr(0), 0) }, unix.EBADF.Error(), eperm, nil},
	{"read the memory of another process", func(o order) error { return opened(fmt.Sprintf("/proc/%d/mem", o.Other), unix.O_RDONLY) }, done, eacces, nil},
	{"enter the network namespace of another process", func(o order) error {
		ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", o.Other), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Setns(ns, unix.CLONE_NEWNET), unix.Close(ns))
	}, done, eacces, nil},
	{"connect to an abstract socket", func(o order) error { return connected(o.Abstract) }, done, eperm, nil},
	{"connect to a socket of root", func(o order) error { return connected(filepath.Join(o.Outside, "socket")) }, done, eacces, func(o order) bool { return o.User == nil }},
	{"read the passwords", func(order) error { return opened("/etc/shadow", unix.O_RDONLY) }, done, eacces, nil},
	{"write an attribute of its own", func(o order) error { return opened(filepath.Join(o.Outside, "attribute"), unix.O_WRONLY) }, done, done, nil},
	{"read /sys", func(order) error { return opened("/sys/class/net/lo/mtu", unix.O_RDONLY) }, done, done, nil},
	{"read of the kernel", func(order) error { return opened("/sys/kernel/uevent_seqnum", unix.O_RDONLY) }, done, eacces, nil},
	{"switch the machine off", func(order) error { return opened("/sys/power/state", unix.O_WRONLY) }, "", eacces, nil},
	{"remove a PCI device", func(order) error { return opened("/sys/bus/pci/rescan", unix.O_WRONLY) }, "", eacces, nil},
	{"open a raw disk", func(o order) error { return opened(filepath.Join(o.Outside, "disk"), unix.O_RDONLY) }, "", eacces, nil},
	{"share memory by a key", func(order) error { return call(unix.SYS_SHMGET, 0, 0, 0) }, unix.EINVAL.Error(), eperm, nil},
	{"share a semaphore", func(order) error { return call(unix.SYS_SEMGET, 0, ^uintptr(0), 0) }, unix.EINVAL.Error(), eperm, nil},
	{"send a message to a queue", func(order) error { return call(unix.SYS_MSGSND, ^uintptr(0), 0, 0, 0) }, "", eperm, nil},
	{"open a POSIX queue", func(order) error { return call(unix.SYS_MQ_OPEN, 0, 0, 0, 0) }, unix.EFAULT.Error(), eperm, nil},
	{"mount by a descriptor", func(order) error { return call(unix.SYS_OPEN_TREE_ATTR, ^uintptr(0), 0, ^uintptr(0), 0, 0) }, "", eperm, nil},
	{"change the flags of a file", func(order) error { return call(unix.SYS_FILE_SETATTR, ^uintptr(0), 0, 0, 0, 0) }, "", eperm, nil},
	{"watch a file system", func(order) error { return call(unix.SYS_FANOTIFY_MARK, ^uintptr(0), 1, 0, ^uintptr(0), 0) }, "", eperm, nil},
	{"freeze a file system", func(order) error { return unix.IoctlSetInt(-1, fiFreeze, 0) }, unix.EBADF.Error(), eperm, nil},
	{"make a file immutable", func(order) error { return call(unix.SYS_IOCTL, ^uintptr(0), unix.FS_IOC_SETFLAGS) }, unix.EBADF.Error(), eperm, nil},
	{"make a file immutable, 32 bits", func(order) error { return call(unix.SYS_IOCTL, ^uintptr(0), setFlags32) }, unix.EBADF.Error(), eperm, nil},
	{"change the project of a file", func(order) error { return call(unix.SYS_IOCTL, ^uintptr(0), setXattr) }, unix.EBADF.Error(), eperm, nil},
	{"seal a file", func(order) error { return call(unix.SYS_IOCTL, ^uintptr(0), unix.FS_IOC_ENABLE_VERITY) }, unix.EBADF.Error(), eperm, nil},
	{"let a socket signal another process", func(order) error { return call(unix.SYS_IOCTL, ^uintptr(0), setOwner) }, unix.EBADF.Error(), eperm, nil},
	{"let a file signal another process", func(o order) error { return let(o, unix.F_SETOWN, o.Other) }, done, eperm, nil},
	{"let a file signal another thread", func(o order) error { return let(o, unix.F_SETOWN_EX, 0) }, unix.EFAULT.Error(), eperm, nil},
	{"choose the signal of a file", func(o order) error { return let(o, unix.F_SETSIG, int(unix.SIGKILL)) }, done, eperm, nil},
	{"delay those that open a file", func(o order) error { return let(o, unix.F_SETLEASE, unix.F_UNLCK) }, "", eperm, nil},
	{"be signalled when a directory changes", func(o order) error { return let(o, unix.F_NOTIFY, 0) }, "", eperm, nil},
	{"thaw a file system", func(order) error { return unix.IoctlSetInt(-1, fiThaw, 0) }, unix.EBADF.Error(), eperm, nil},
	{"shut a file system down", func(order) error { return unix.IoctlSetInt(-1, shutDown, 0) }, unix.EBADF.Error(), eperm, nil},
	{"paste into a terminal", func(order) error { return unix.IoctlSetInt(-1, unix.TIOCLINUX, 0) }, unix.EBADF.Error(), eperm, nil},
	{"give a file away", func(o order) error {
		fd, err := unix.Open(filepath.Join(o.Dir, "file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fchown(fd, os.Geteuid(), -1), unix.Close(fd))
	}, done, eperm, nil},
	{"use nftables", func(order) error { return socket(unix.AF_NETLINK, unix.NETLINK_NETFILTER) }, "", eperm, nil},
	{"use generic netlink", func(order) error { return socket(unix.AF_NETLINK, unix.NETLINK_GENERIC) }, done, eperm, nil},
	{"use route netlink", func(order) error { return socket(unix.AF_NETLINK, unix.NETLINK_ROUTE) }, done, done, nil},
	{"use the kernel's ciphers", func(order) error { return socket(unix.AF_ALG, 0) }, "", eperm, nil},
	{"talk to virtual machines", func(order) error { return socket(unix.AF_VSOCK, 0) }, "", eperm, nil},
	{"use XDP sockets", func(order) error { return socket(unix.AF_XDP, 0) }, "", eperm, nil},
	{"make a process with clone3", func(order) error { return call(unix.SYS_CLONE3, 0, 0) }, unix.EINVAL.Error(), unix.ENOSYS.Error(), nil},
}

// Numbers that no object of eBPF has.
const (
	noID = 1<<32 - 1
	noFD = 1<<31 - 1
)

// bpfCall makes a bpf(2) call with the first words of its attributes.
func bpfCall(command uintptr, words ...uint32) error {
	var attr [32]uint32
	copy(attr[:], words)
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// loadSocketFilter loads a program that passes no packet: r0 = 0; exit.
func loadSocketFilter(order) error {
	license := []byte("GPL\x00")
	instructions := []uint64{unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, unix.BPF_JMP | unix.BPF_EXIT}
	attr := struct {
		kind, count           uint32
		instructions, license unsafe.Pointer
		_                     [12]uint64
	}{unix.BPF_PROG_TYPE_SOCKET_FILTER, uint32(len(instructions)), unsafe.Pointer(&instructions[0]), unsafe.Pointer(&license[0]), [12]uint64{}}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// load prepares what the order says.
func (o *order) load() (c Carried) {
	if o.Loads {
		var err error
		if c.Programs.Descriptors, err = programs.Load(2); err != nil {
			c.Programs.Err = err.Error()
		}
	}
	return c
}

// use attaches loaded programs to a TAP, and reads counts.
func use(c Loaded) error {
	if c.Err != "" {
		return errors.New(c.Err)
	}
	p, err := programs.Open(c.Descriptors)
	if err != nil {
		return err
	}
	filter, err := p.Filter()
	if err != nil {
		return err
	}
	steering, err := p.Steering(2)
	if err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("sandbox%d")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if n := filter.Counts().Kinds; n != [programs.NumKind]uint64{} {
		return fmt.Errorf("counted %v", n)
	}
	return errors.Join(unix.IoctlIfreq(fd, unix.TUNSETIFF, req),
		unix.IoctlSetPointerInt(fd, unix.TUNSETFILTEREBPF, filter.FD()), unix.IoctlSetPointerInt(fd, unix.TUNSETSTEERINGEBPF, steering))
}

// setLoopbackUp needs CAP_NET_ADMIN in the network namespace.
func setLoopbackUp(order) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// set changes the capabilities of the calling thread.
func set(change func(capability.Capabilities)) error {
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	if err != nil {
		return err
	}
	change(caps)
	return caps.Apply(capability.CAPS)
}

// with returns whether a policy includes a capability.
func with(c capability.Cap) func(order) bool {
	return func(o order) bool { return slices.Contains(o.Policy.Capabilities, c) }
}

// keeps returns an error if the thread has other capabilities than its policy.
func keeps(kind capability.CapType, o order) error {
	if o.Policy == nil {
		return errors.New("has more")
	}
	want := o.Policy.Capabilities
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	if err != nil {
		return err
	}
	if !slices.Equal(held(caps, kind), want) {
		return errors.New("has more")
	}
	return nil
}

// run runs a child, and returns its answer.
func run(t *testing.T, program string, o order, environ ...string) (answer, error) {
	t.Helper()
	o.Other, o.Abstract = os.Getpid(), "@"+o.Dir
	for _, name := range []string{o.Abstract, filepath.Join(o.Outside, "socket")} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(name, 0o600); name[0] == '/' && err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "one", "two")
	cmd.Env = append(append(os.Environ(), childEnv+"="+string(text)), environ...)
	var a answer
	out, err := cmd.Output()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return a, fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	return a, err
}

// folders returns a directory that a sandbox includes, and one that it does not.
func folders(t *testing.T) (dir, outside string) {
	t.Helper()
	base, err := os.MkdirTemp("", "ipoibd-sandbox") //nolint:usetesting // that directory is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	dir, outside = filepath.Join(base, "inside"), filepath.Join(base, "outside")
	for _, path := range []string{base, dir, outside} {
		_ = os.Mkdir(path, 0o755)
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // also another user may read it
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "file"), filepath.Join(outside, "file"), filepath.Join(outside, "attribute")} {
		if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)); err != nil { //nolint:gosec // anyone may use it
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(outside, "disk"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))); err != nil { // loop0
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "file"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir, outside
}

// least is the policy of a daemon without further features, with a directory.
func least(dir string) *Policy {
	return &Policy{
		Capabilities: []capability.Cap{capability.CAP_NET_ADMIN, capability.CAP_NET_RAW},
		Read:         alwaysRead, Write: []string{dir}, Devices: []string{tunDir},
	}
}

// beforeABI9 reports whether a part is missing that today's kernels lack.
func beforeABI9(missing string) bool {
	return strings.HasPrefix(missing, "connections to UNIX sockets of root are not restricted")
}

// A process that has entered the sandbox as the daemon does can neither open a file outside it, nor
// start a program, nor have a capability that it does not need. Outside, each of these deeds works, or
// fails for another reason.
func TestEnter(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, outside := folders(t)
	free, err := run(t, program, order{Dir: dir, Outside: outside})
	if err != nil {
		t.Fatal(err)
	}
	dir, outside = folders(t)
	policy := least(dir)
	policy.Attributes = []string{filepath.Join(outside, "attribute")}
	a, err := run(t, program, order{Policy: policy, Dir: dir, Outside: outside})
	if err != nil {
		t.Fatal(err)
	}
	if a.Missing = slices.DeleteFunc(a.Missing, beforeABI9); len(a.Missing) > 0 {
		t.Errorf("missing: %q", a.Missing)
	}
	if a.PIDs[0] != a.PIDs[1] {
		t.Errorf("process %s has become process %s", a.PIDs[0], a.PIDs[1])
	}
	if !slices.Equal(a.Args, free.Args) || slices.ContainsFunc(a.Environment, func(s string) bool { return strings.HasPrefix(s, variable) }) || len(a.Environment) != len(free.Environment) {
		t.Errorf("arguments %q and environment %q, outside %q and %q", a.Args, a.Environment, free.Args, free.Environment)
	}
	for _, d := range deeds {
		if got := free.Results[d.name]; d.outside != "" && got != d.outside {
			t.Errorf("outside the sandbox, %s: %s, want %s", d.name, got, d.outside)
		}
	}
	a.check(t, order{Policy: policy})
	t.Logf("%d deeds", len(deeds))
}

// check compares the results of the deeds in a sandbox with the table.
func (a answer) check(t *testing.T, o order) {
	t.Helper()
	for _, d := range deeds {
		if got := a.Results[d.name]; got != d.inside && (d.may == nil || !d.may(o)) {
			t.Errorf("%s: %s, want %s", d.name, got, d.inside)
		}
	}
}

// mountVerbs makes a directory for the devices of HCAs.
func mountVerbs(t *testing.T, options string) {
	t.Helper()
	created := os.Mkdir(verbsDir, 0o755) == nil
	t.Cleanup(func() {
		_ = unix.Unmount(verbsDir, unix.MNT_DETACH)
		if created {
			_ = os.Remove(verbsDir)
		}
	})
	if err := unix.Mount("tmpfs", verbsDir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
}

// The directory of an HCA's devices stays when the last device is removed. Where that cannot be, the
// daemon opens devices in the directory above, and says so.
func TestKeepDevices(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	mountVerbs(t, "mode=755")
	p := Policy{Devices: []string{verbsDir, tunDir}}
	if missing := p.keepDevices(); missing != nil || p.Devices[0] != verbsDir {
		t.Errorf("missing %q, devices %q", missing, p.Devices)
	}
	if entries, err := os.ReadDir(verbsDir); len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := unix.Mount("tmpfs", verbsDir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(verbsDir, unix.MNT_DETACH) }()
	if missing := p.keepDevices(); len(missing) != 1 || !strings.Contains(missing[0], "rdma_ucm") || p.Devices[0] != "/dev" {
		t.Errorf("missing %q, devices %q", missing, p.Devices)
	}
}

// openTun lets everyone open the TUN device, as udev does.
func openTun(t *testing.T) {
	t.Helper()
	node := filepath.Join(verbsDir, "tun")
	err := errors.Join(unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(10, 200))), os.Chmod(node, 0o666), unix.Mount(node, "/dev/net/tun", "", unix.MS_BIND, "")) //nolint:gosec // as udev does
	if err != nil {
		t.Fatal(err)
	}
}

// With every combination of the options that need something, as root and as another user, the
// deeds fail that no option allows.
func TestEnterConfigured(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// An HCA's devices; the directory stays, empty.
	mountVerbs(t, "mode=755")
	openTun(t)
	options := []struct{ top, device, iface string }{
		{iface: "ebpf: false"},
		{iface: "follow: true"},
		{top: "lend: true"},
		{device: "lanes: 4, peers: [host.example]"},
		{device: "device: mlx5_0, reset: pci"},
		{top: "metrics_listen: ':80'"},
		{device: "fast_path: true"}, // alone: it changes only what it may do itself
	}
	fast := 1 << (len(options) - 1)
	seen := map[string]bool{} // policies
	for set := range fast + 1 {
		var top, device, iface []string
		for i, o := range options {
			if set&(1<<i) != 0 {
				top, device, iface = append(top, o.top), append(device, o.device), append(iface, o.iface)
			}
		}
		join := func(list []string) string {
			return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), ", ")
		}
		text := strings.Join(top, "\n") + "\ndevices: [{" + join(append(device, "name: hca")) + "}]\ninterfaces: [{" + join(append(iface, "name: ib0")) + "}]\n"
		cfg, err := config.Parse("c.yaml", []byte(text))
		if err != nil {
			continue // a software HCA's option of a real one
		}
		p := Needs(cfg, "/etc/ipoibd/c.yaml")
		what := describe(p)
		if seen[what] {
			continue
		}
		seen[what] = true
		for _, user := range []*User{nil, {UID: 65534, GID: 65534, Groups: []int{}}} {
			dir, outside := folders(t)
			p.Write, p.Attributes = []string{dir}, []string{filepath.Join(outside, "attribute")}
			o := order{Policy: &p, User: user, Dir: dir, Outside: outside}
			a, err := run(t, program, o)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			before := t.Failed()
			a.check(t, o)
			if t.Failed() && !before {
				t.Errorf("this was with user %v and\n%s", user, text)
			}
		}
	}
	t.Logf("%d policies, 2 users, %d deeds each", len(seen), len(deeds))
}

// The user gets the directories of ipoibd that are root's, but no others, and none in which another
// user could have put something.
func TestAdopt(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	base := t.TempDir()
	const stranger = 4711
	for _, dir := range []string{"ipoibd/holders", "app/data", "open/ipoibd", "theirs/ipoibd"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	node := filepath.Join(base, "ipoibd", "node")
	theirs := filepath.Join(base, "ipoibd", "theirs")
	below := filepath.Join(base, "ipoibd", "below") // another user could replace what is in it by a link
	err := errors.Join(
		os.Mkdir(below, 0o755), os.WriteFile(filepath.Join(below, "roots"), nil, 0o600), os.Chown(below, stranger, stranger),
		os.Chmod(filepath.Join(base, "open"), 0o777), //nolint:gosec // anyone may replace what is in it
		os.Chown(filepath.Join(base, "theirs"), stranger, stranger),
		os.WriteFile(theirs, nil, 0o600), os.Chown(theirs, stranger, stranger),
		unix.Mkfifo(node, 0o600), os.Symlink("nowhere", filepath.Join(base, "ipoibd", "link")),
	)
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{Write: []string{filepath.Join(base, "ipoibd"), filepath.Join(base, "app"), filepath.Join(base, "open", "ipoibd"), filepath.Join(base, "theirs", "ipoibd")}, Private: []string{filepath.Join(base, "new")}}
	if err := (&User{UID: 65534, GID: 65534}).adopt(p); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{
		"ipoibd": 65534, "ipoibd/holders": 65534, "ipoibd/link": 65534, "ipoibd/node": 0, "ipoibd/theirs": stranger, "ipoibd/below": stranger, "ipoibd/below/roots": 0, "new": 65534,
		"app": 0, "app/data": 0, "open/ipoibd": 0, "theirs/ipoibd": 0,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(base, path), &st); err != nil || st.Uid != want {
			t.Errorf("%s belongs to user %d (%v), want %d", path, st.Uid, err, want)
		}
	}
}

// A container to which a directory is mounted replaces what is in it by links to files of the host, while root gives
// the directory to the user: those files stay root's.
func TestAdoptFollowsNoLink(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	base := t.TempDir()
	shared, victim := filepath.Join(base, "ipoibd"), filepath.Join(base, "victim")
	real, link := filepath.Join(shared, "locks"), filepath.Join(shared, "link")
	if err := errors.Join(os.MkdirAll(real, 0o755), os.Mkdir(victim, 0o755), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // so that a walk takes a while
		name := fmt.Sprintf("f%02d", i)
		if err := errors.Join(os.WriteFile(filepath.Join(real, name), nil, 0o600), os.WriteFile(filepath.Join(victim, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stop, swapped := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				swapped <- n
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, real, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 100 {
		if err := (&User{UID: 65534, GID: 65534}).adopt(Policy{Private: []string{shared}}); err != nil {
			t.Error(err)
		}
		for _, path := range []string{shared, real, link} {
			_ = os.Lchown(path, 0, 0)
		}
	}
	close(stop)
	t.Logf("%d exchanges", <-swapped)
	files, err := os.ReadDir(victim)
	if err != nil || len(files) != 100 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || !owned(info) {
			t.Errorf("%s was given away (%v)", f.Name(), err)
		}
	}
}

// A root daemon that listens keeps its directory, even if it is too busy to answer or its socket is in a subdirectory.
// Stale sockets, datagram sockets, and sockets in directories that hold no control socket do not count.
func TestAdoptFindsDaemonOfRoot(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const nobodyListens = -1
	for _, c := range []struct {
		name    string
		kind    int
		backlog int
		private bool
		below   string
		want    bool
	}{
		{"listens", unix.SOCK_STREAM, 8, false, "", true},
		{"listens further below", unix.SOCK_STREAM, 8, false, "other", true},
		{"is busy", unix.SOCK_STREAM, 0, false, "", true},
		{"has ended", unix.SOCK_STREAM, nobodyListens, false, "", false},
		{"receives datagrams", unix.SOCK_DGRAM, nobodyListens, false, "", false},
		{"is of another program", unix.SOCK_STREAM, 8, true, "", false},
	} {
		dir := filepath.Join(t.TempDir(), "ipoibd")
		if err := os.MkdirAll(filepath.Join(dir, c.below), 0o755); err != nil {
			t.Fatal(err)
		}
		socket := func() int {
			fd, err := unix.Socket(unix.AF_UNIX, c.kind|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
		fd, addr := socket(), &unix.SockaddrUnix{Name: filepath.Join(dir, c.below, "s")}
		if err := unix.Bind(fd, addr); err != nil {
			t.Fatal(err)
		}
		if c.backlog != nobodyListens {
			if err := unix.Listen(fd, c.backlog); err != nil {
				t.Fatal(err)
			}
		}
		if c.backlog == 0 {
			for unix.Connect(socket(), addr) == nil { // until the backlog is full
			}
		}
		p := Policy{Write: []string{dir}}
		if c.private {
			p = Policy{Private: []string{dir}}
		}
		err := (&User{UID: 65534, GID: 65534}).adopt(p)
		if got := err != nil && strings.Contains(err.Error(), "stop it first"); got != c.want || !c.want && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if info, err := os.Lstat(dir); err != nil || owned(info) != c.want {
			t.Errorf("%s: the directory is root's: %t, want %t (%v)", c.name, owned(info), c.want, err)
		}
	}
}

// Landlock alone, without the filter, also ends signals and connections to abstract sockets at the
// sandbox, but not those within it.
func TestScopes(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	dir, outside := folders(t)
	requireInFiles(t, least(dir), dir, outside, map[string]string{
		"signal another process": eperm, "signal itself": done, "connect to an abstract socket": eperm, "limit another process": done,
	})
}

// A link that takes the place of a directory after the policy was checked opens nothing.
func TestLinkAfterTheCheck(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	dir, _ := folders(t)
	outside := t.TempDir() // not called like ipoibd's
	p, link := least(dir), filepath.Join(dir, "ipoibd")
	p.Write = append(p.Write, link)
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	requireInFiles(t, p, dir, outside, map[string]string{"create a file": eacces, "write in its directory": done})
}

// requireInFiles checks the results of deeds of a process that Landlock alone restricts.
func requireInFiles(t *testing.T, p *Policy, dir, outside string, wants map[string]string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, err := run(t, program, order{Policy: p, Dir: dir, Outside: outside, Files: true})
	if err != nil {
		t.Fatal(err)
	}
	for deed, want := range wants {
		if got := a.Results[deed]; got != want {
			t.Errorf("%s: %s, want %s (missing: %q)", deed, got, want, a.Missing)
		}
	}
}

// No policy allows bpf(2), also not with programs that the first start has loaded. These still work.
func TestEnterWithPrograms(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]capability.Cap{
		"least": nil, "lending": {capability.CAP_SYS_ADMIN, capability.CAP_NET_BROADCAST}, "all": {capability.CAP_SYS_ADMIN, capability.CAP_BPF, capability.CAP_PERFMON},
	} {
		dir, outside := folders(t)
		p := least(dir)
		p.Capabilities = append(p.Capabilities, more...)
		a, err := run(t, program, order{Policy: p, Dir: dir, Outside: outside, Loads: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Results["use loaded programs"]; got != done {
			t.Errorf("%s: use loaded programs: %s", name, got)
		}
		n := 0
		for _, d := range deeds {
			if !strings.HasPrefix(d.name, "bpf: ") {
				continue
			}
			if n++; a.Results[d.name] != eperm {
				t.Errorf("%s: %s: %s, want %s", name, d.name, a.Results[d.name], eperm)
			}
		}
		t.Logf("%s: %d deeds", name, n)
	}
}

// A program that was deleted, as by an upgrade, still enters.
func TestEnterDeleted(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, self, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	dir, outside := folders(t)
	a, err := run(t, program, order{Policy: least(dir), Dir: dir, Outside: outside, Delete: program})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Results["read a file that all may read"]; got != eacces {
		t.Errorf("read a file: %s, want %s", got, eacces)
	}
	if _, err := os.Stat(program); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program is still there: %v", err)
	}
}

// What the kernel lacks or forbids is reported, and the rest of the sandbox holds.
func TestEnterWithoutAll(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, outside := folders(t)
	a, err := run(t, program, order{Policy: least(dir), Dir: dir, Outside: outside, Lacks: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"the bounding set of capabilities stays as it is, because CAP_SETPCAP is missing",
		"the kernel has no Landlock, which restricts access to files (function not implemented)",
	}
	if !slices.Equal(a.Missing, want) {
		t.Errorf("missing %q, want %q", a.Missing, want)
	}
	for deed, want := range map[string]string{
		"read a file that all may read": done, "inherit a capability": "has more", // what is missing
		"keep a capability": done, "gain a capability": eperm, "start a program": eperm, "change the network": done,
	} {
		if got := a.Results[deed]; got != want {
			t.Errorf("%s: %s, want %s", deed, got, want)
		}
	}
}

// The variable alone does not make a process believe that it is confined.
func TestVariableIsChecked(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, outside := folders(t)
	text, err := json.Marshal(Sandbox{Policy: *least(dir), ABI: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t, program, order{Policy: least(dir), Dir: dir, Outside: outside}, variable+"="+string(text))
	if err == nil || !strings.Contains(err.Error(), "says that the process is in a sandbox, but it could gain privileges") {
		t.Errorf("%v, want an error", err)
	}
}
