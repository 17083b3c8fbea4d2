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
	broad := Policy{Capabilities: []capability.Cap{capability.CAP_SYS_ADMIN}, Filters: 1}
	const thread = unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND
	for _, c := range []struct {
		name         string
		p            Policy
		arch, nr     uint32
		first, other uint32 // arguments
		want         uint32
	}{
		{"read", lean, auditArch, unix.SYS_READ, 0, 0, allowed},
		{"ioctl", lean, auditArch, unix.SYS_IOCTL, 0, unix.TUNSETIFF, allowed},
		{"input for a terminal", broad, auditArch, unix.SYS_IOCTL, 0, unix.TIOCSTI, eperm},
		{"execve", broad, auditArch, unix.SYS_EXECVE, 0, 0, eperm},
		{"execve of another architecture", lean, auditArch ^ 1, 11, 0, 0, eperm},
		{"read of another architecture", lean, auditArch ^ 1, unix.SYS_READ, 0, 0, eperm},
		{"a call of x32", lean, auditArch, foreignBit | unix.SYS_READ, 0, 0, enosys},
		{"bpf", lean, auditArch, unix.SYS_BPF, 0, 0, eperm},
		{"bpf with eBPF in use", broad, auditArch, unix.SYS_BPF, 0, 0, eperm},
		{"setns", lean, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNET, eperm},
		{"setns to a network", broad, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNET, allowed},
		{"setns to mounts", broad, auditArch, unix.SYS_SETNS, 9, unix.CLONE_NEWNS, eperm},
		{"setns to any", broad, auditArch, unix.SYS_SETNS, 9, 0, eperm},
		{"a thread", lean, auditArch, unix.SYS_CLONE, thread, 0, allowed},
		{"a user namespace", broad, auditArch, unix.SYS_CLONE, thread | unix.CLONE_NEWUSER, 0, eperm},
		{"clone3", lean, auditArch, unix.SYS_CLONE3, 0, 0, enosys},
		{"the last of the list", lean, auditArch, unix.SYS_PERSONALITY, 0, 0, eperm},
	} {
		// The VM reads in network order, the kernel in its own; so this data is not that of the
		// kernel, but has the same values at the same offsets.
		var data [64]byte
		for offset, v := range map[int]uint32{offsetNr: c.nr, offsetArch: c.arch, offsetArg0: c.first, offsetArg1: c.other} {
			binary.BigEndian.PutUint32(data[offset:], v)
		}
		vm, err := bpf.NewVM(c.p.filter())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := vm.Run(data[:]); err != nil || uint32(got) != c.want {
			t.Errorf("%s: %#x, %v; want %#x", c.name, got, err, c.want)
		}
	}
}
