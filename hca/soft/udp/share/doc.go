// Package share lets daemons in one network namespace share a UDP port on a netdev.
//
// Their receiving sockets form an SO_REUSEPORT group. A program of package bpf selects the socket
// by the first bits of the destination QPN, which are the daemon's slot. So two daemons never use
// the same QPN, and they need not announce their QPs. Each socket receives all multicast. The
// program finds the sockets in a map to which all daemons hold a descriptor, and from which the
// kernel removes closed sockets. A netdev with rx-gro-list coalesces datagrams for several QPNs
// even for sockets without UDP_GRO ([Membership.Joined]); then the daemon of the first datagram
// gets all of them, and drops those for other daemons.
//
//	dir/<namespace>-<netdev>/lock | locked while a daemon joins
//	                         N    | registration of slot N, locked by the kernel until its
//	                              | daemon ends: source port, inode and user of the sockets
//	                         N.sock | sends the map to daemons that join
//
// The first daemon creates the map, and each later one receives it from any other, so the
// group survives the exit of any daemon. Inotify reports when a daemon registers or exits. The
// caller's filter then accepts datagrams from this host if they come from the registered source
// ports ([Membership.Filter]).
//
// If another process of the same daemon continues its sockets, it continues the membership too, with
// the open files ([Membership.HandOver], [Inherit]): the lock of the registration belongs to the open
// file, and the other daemons notice nothing.
//
// A socket can join the group only if it has the same owner as the others. Daemons with
// CAP_CHOWN change the owner of their sockets to a user without processes ([Nobody]),
// so no process without that capability can bind the port, not even one of root. Without the
// capability, any process of the daemon's user can bind it, and receive datagrams meant for the
// daemons. So once a second each daemon attaches the program again, and looks for sockets that
// no daemon has registered ([Membership.Strangers]).
package share
