// Package holders finds the sockets on a UDP port of a netdev, and the processes that hold them.
//
// sock_diag(7) lists the sockets with the netdev that each is bound to, and /proc shows which
// process has a descriptor of a socket. Processes of other users, of other PID namespaces and
// the kernel itself stay unknown if /proc does not show them.
package holders
