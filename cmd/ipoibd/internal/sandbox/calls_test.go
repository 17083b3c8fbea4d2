package sandbox

import (
	"encoding/binary"
	"testing"

	"github.com/moby/sys/capability"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter decides by the call, its architecture and its flags.
func TestFilter(t *testing.T) {
	const (
		allowed = unix.SECCOMP_RET_ALLOW
		eperm   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	var lean Policy
	const own = 4711 // PID
	broad := Policy{Capabilities: []capability.Cap{capability.CAP_SYS_ADMIN}, Filters: 1}
	fast := Policy{FastPath: true}
	const thread = unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND
	for _, c := range []struct {
		name                string
		p                   Policy
		arch, nr            uint32
		first, other, third uint32 // arguments
		want                uint32
	}{
		{"read", lean, auditArch, unix.SYS_READ, 0, 0, 0, allowed},
		{"ioctl", lean, auditArch, unix.SYS_IOCTL, 0, unix.TUNSETIFF, 0, allowed},
		{"input for a terminal", broad, auditArch, unix.SYS_IOCTL, 0, unix.TIOCSTI, 0, eperm},
		{"execve", broad, auditArch, unix.SYS_EXECVE, 0, 0, 0, eperm},
		{"execve of another architecture", lean, auditArch ^ 1, 11, 0, 0, 0, eperm},
		{"read of another architecture", lean, auditArch ^ 1, unix.SYS_READ, 0, 0, 0, eperm},
		{"a call of x32", lean, auditArch, foreignBit | unix.SYS_READ, 0, 0, 0, enosys},
		{"bpf", lean, auditArch, unix.SYS_BPF, 0, 0, 0, eperm},
		{"bpf with eBPF in use", broad, auditArch, unix.SYS_BPF, 0, 0, 0, eperm},
		{"bpf: load with a fast path", fast, auditArch, unix.SYS_BPF, unix.BPF_PROG_LOAD, 0, 0, eperm},
		{"bpf: open another's map with a fast path", fast, auditArch, unix.SYS_BPF, unix.BPF_MAP_GET_FD_BY_ID, 0, 0, eperm},
		{"bpf: change a map of the fast path", fast, auditArch, unix.SYS_BPF, unix.BPF_MAP_UPDATE_ELEM, 0, 0, allowed},
		{"bpf: change a map of no fast path", broad, auditArch, unix.SYS_BPF, unix.BPF_MAP_UPDATE_ELEM, 0, 0, eperm},
		{"IPsec", lean, auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM, eperm},
		{"IPsec with a fast path", fast, auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM, allowed},
		{"setns", lean, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNET, 0, eperm},
		{"setns to a network", broad, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNET, 0, allowed},
		{"setns to mounts", broad, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNS, 0, eperm},
		{"setns to any", broad, auditArch, unix.SYS_SETNS, 9, 0, 0, eperm},
		{"a thread", lean, auditArch, unix.SYS_CLONE, thread, 0, 0, allowed},
		{"a user namespace", broad, auditArch, unix.SYS_CLONE, thread | unix.CLONE_NEWUSER, 0, 0, eperm},
		{"clone3", lean, auditArch, unix.SYS_CLONE3, 0, 0, 0, enosys},
		{"a signal to itself", lean, auditArch, unix.SYS_TGKILL, own, own + 1, 6, allowed},
		{"a signal to another process", broad, auditArch, unix.SYS_TGKILL, own + 1, own + 1, 9, eperm},
		{"a signal to all", broad, auditArch, unix.SYS_KILL, ^uint32(0), 9, 0, eperm},
		{"a signal to its group", broad, auditArch, unix.SYS_KILL, 0, 9, 0, eperm},
		{"its limits", lean, auditArch, unix.SYS_PRLIMIT64, 0, 7, 0, allowed},
		{"limits of another process", broad, auditArch, unix.SYS_PRLIMIT64, 1, 7, 0, eperm},
		{"freeze a file system", broad, auditArch, unix.SYS_IOCTL, 3, fiFreeze, 0, eperm},
		{"a socket's signals to another process", broad, auditArch, unix.SYS_IOCTL, 3, unix.SIOCSPGRP, 0, eperm},
		{"a file's signals to another process", broad, auditArch, unix.SYS_FCNTL, 3, unix.F_SETOWN, 0, eperm},
		{"a lock", lean, auditArch, unix.SYS_FCNTL, 3, unix.F_OFD_SETLK, 0, allowed},
		{"a UDP socket", lean, auditArch, unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, 0, allowed},
		{"a TCP socket with MPTCP", lean, auditArch, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, allowed},
		{"a socket of no family", lean, auditArch, unix.SYS_SOCKET, 0, unix.SOCK_DGRAM, 0, eperm},
		{"a socket of virtual machines", broad, auditArch, unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0, eperm},
		{"a socket of XDP", broad, auditArch, unix.SYS_SOCKET, unix.AF_XDP, unix.SOCK_RAW, 0, eperm},
		{"routes", lean, auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, allowed},
		{"RDMA devices", lean, auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_RDMA, allowed},
		{"nftables", broad, auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, eperm},
		{"the owner of a file", broad, auditArch, unix.SYS_FCHOWN, 3, 0, 0, eperm},
		{"the last of the list", lean, auditArch, unix.SYS_PERSONALITY, 0, 0, 0, eperm},
	} {
		// The VM reads in network order, the kernel in its own; so this data is not that of the
		// kernel, but has the same values at the same offsets.
		var data [64]byte
		for offset, v := range map[int]uint32{offsetNr: c.nr, offsetArch: c.arch, offsetArg0: c.first, offsetArg0 + argument: c.other, offsetArg0 + 2*argument: c.third} {
			binary.BigEndian.PutUint32(data[offset:], v)
		}
		vm, err := bpf.NewVM(c.p.filter(own))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := vm.Run(data[:]); err != nil || uint32(got) != c.want {
			t.Errorf("%s: %#x, %v; want %#x", c.name, got, err, c.want)
		}
	}
}
