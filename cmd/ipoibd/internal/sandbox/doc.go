// Package sandbox confines the daemon to what its configuration needs: capabilities, directories
// and system calls.
//
// [Needs] decides what a configuration needs, as a [Policy]: pure, and tested as a table. [Enter]
// makes the process obey it, in two halves with one execve of the same program in between:
//
//	first start:   eBPF programs loaded; capabilities dropped, no_new_privs set, Landlock's rules set;
//	               execve, with the descriptors of the programs
//	second start:  seccomp filter installed; Enter returns, and only now is any device opened
//
// The execve is needed for two reasons. Capabilities and Landlock's rules belong to a thread, and
// only a new program starts with one set of them for all of its threads. And uverbs and rdma_cm
// refuse a descriptor once the credentials of its process are not the very object with which it was
// opened (ib_safe_file_access, include/rdma/ib.h), so privileges must be dropped before a device is
// opened, on all threads alike. The PID, the arguments and the environment stay. The filter comes
// last since it forbids execve itself.
//
// # Deny list
//
// The filter denies system calls that the daemon never makes and that attackers use; it does not
// list those that are allowed. Libibverbs, the drivers that it loads, the C library and Go's runtime
// decide which ones they call, and change that with their versions. An allow list would break the
// daemon on an upgrade of any of them, perhaps while it resets a device. What the daemon may reach
// is limited by capabilities and by Landlock, which need no list of calls.
//
// # eBPF
//
// A process that may load eBPF programs can read the memory of all others and of the kernel, whatever
// else it may not do. So the programs are loaded in the first start, and the descriptors stay open
// across execve ([Carried]). The confined process has neither CAP_BPF nor CAP_PERFMON, and bpf(2) is
// denied: attaching a program to a TAP is an ioctl, and reading counts is reading mapped memory.
//
// # Limits
//
// Landlock's rules belong to directories and files, not to paths. So the rule for the devices of a
// real HCA is one for /dev, below which nodes disappear and return when the HCA is reset. Landlock
// also hides the descriptors of other processes, so a daemon in a sandbox cannot name the process
// that holds its port.
//
// What the kernel does not support is left out, and [Sandbox.Missing] says what.
package sandbox
