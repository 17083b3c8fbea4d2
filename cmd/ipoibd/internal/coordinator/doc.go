// Package coordinator is the shell of [reset]: it lets the processes that use
// one HCA reset it together. A [Coordinator] is one process's share in one
// device: a client, and, in one of the processes, the server besides.
//
// # Who hosts
//
// Whoever finds nobody at the socket hosts; when that process ends, another
// takes over. Beside the socket lies a lock file (flock), held for as long as
// its holder hosts, so the kernel itself gives it up when the holder dies. Only
// the holder removes what lies at the path and binds there: two processes that
// find a stale socket at once cannot remove each other's new one, and a socket
// that somebody deleted does not make a second host. Without a path there is no
// socket: the process hosts for itself, and its client and server are joined by
// two slices.
//
// # One owner
//
// One goroutine steps both machines and owns all their state. What others learn
// comes to it over one channel (a message, a connection that broke or was
// accepted, a process that ended, a reset that is done), so a peer that floods
// fills its own reader's turn and no memory. Nothing that the owner does blocks:
// a connection that cannot take a message at once is dropped; the reset of the
// device itself runs on a goroutine of its own.
//
//	goroutine    | how many         | ends with
//	owner        | 1                | Close
//	listen       | 1 while hosting  | the listener
//	read, write  | 1 each per conn  | the connection, at the latest closeTime after Close
//	process      | 1 per peer       | its process; or the peer is forgotten
//	reset        | at most 1        | Config.Reset returns
//
// # Who may
//
// Both ends check the other's SO_PEERCRED: root and the daemon's own user. The
// socket has mode 0600 from its first moment.
//
// The host holds a pidfd of each peer (SO_PEERPIDFD, since Linux 6.5), by which
// it learns that the process ended even after the connection broke, also where
// the peer's PID namespace has no number here. Where the kernel has none to
// give, the end of the connection stands for the end of the process.
//
// # While a reset runs
//
// Nothing here opens a regular file, starts a program or looks up a name after
// [Join] (R17): the lock file stays open, and a takeover makes its socket by bare
// system calls, since package net reads a file of /proc for the backlog.
//
// # Limits
//
// Somebody who removes both socket and lock file under a living host makes the
// next process host too. A peer that is stopped holds a reset up for the grace
// period; a host that is stopped holds up everybody until it goes on or ends, and
// is named after the grace period ([Silent], see [reset]).
package coordinator
