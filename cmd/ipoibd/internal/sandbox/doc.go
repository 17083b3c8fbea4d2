// Package sandbox confines the daemon to what its configuration needs: a user, capabilities, files
// and system calls, in case an attacker executes code in the daemon.
//
// [Needs] decides what a configuration needs, as a [Policy]: pure, and tested as a table. [Enter]
// enforces it on the process, in two halves with one execve of the same program in between:
//
//	first start:   descriptors closed, eBPF programs loaded, root left, capabilities dropped,
//	               no_new_privs set, Landlock's rules set; execve, with the descriptors of the programs
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
// else the kernel denies it. So the programs are loaded in the first start, and their descriptors stay
// open across execve ([Carried]). The confined process has neither CAP_BPF nor CAP_PERFMON, and bpf(2) is
// denied: attaching a program to a TAP is an ioctl, and reading counts is reading mapped memory.
//
// # Limits
//
// Landlock's rules belong to directories and files, not to paths. The device nodes of a real HCA
// disappear in a reset and return, so the rule is one for /dev/infiniband, and a file in that directory
// keeps it when the last node is gone. A file that is replaced, such as a configuration file by an
// editor, is readable only if its directory is; so only a directory that no other program uses is opened as
// a whole. Landlock also hides the descriptors of other processes, so only the first start can name a
// process that holds the daemon's port.
//
// A process of root is not confined as long as it can talk to a service that does what root asks, such
// as systemd. Before ABI 9, Landlock does not restrict connections to sockets with a path. So the daemon
// leaves root if the machine has a user for it. A user of its own also protects its group of sockets
// (lanes), which the kernel lets all sockets of that user join.
//
// What the kernel does not support is left out, and [Sandbox.Missing] says what.
package sandbox
