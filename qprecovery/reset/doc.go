// Package reset coordinates the reset of an HCA that several processes of one host
// use, by two kernel file locks and one small file (R11-R17). It is pure: time is
// passed in, events go in, actions come out ([Machine.Step], [Machine.NextDeadline]).
// The shell makes the system calls and answers with events.
//
// # The files
//
// Per device there are two files in a directory on tmpfs. Their name is the node
// GUID and the PCI address or, for a software RDMA device, its parent netdev
// ([Device.Key]); never the kernel's index, which changes whenever a device is added
// again. So processes of different HCAs cannot meet, even if they share a directory.
//
//	<key>.use     empty; flock only. Shared: this process may have the device open.
//	              Exclusive: this process resets it.
//	<key>.intent  flock exclusive: this process leads a reset. The content is one
//	              [Record]; only the holder of the lock writes it.
//
// The kernel elects the leader, and releases the locks of a process that dies, in
// any PID, mount or network namespace. No process trusts another one's word about
// who lives. All processes watch the intent file; as events may be lost, each also
// reads it once a second.
//
// # Rules
//
//  1. A process tries for the exclusive lock on use only while it holds the lock on
//     intent. So the conversions between shared and exclusive, which flock makes in
//     two steps, are safe while it holds the lock on intent, and one descriptor for
//     each file is enough.
//  2. A leader writes the intent before it tries for the exclusive lock. A process
//     reads the intent again after it took the shared lock. So no process misses an
//     intent, and the leader's try fails until that process has released.
//  3. A record that says wanted or resetting, without a holder of the intent lock, is
//     a reset that was cut short. Any process that can reset the device takes the
//     lock and leads it to its end. A hand-over, from a process that lacks the
//     privilege to reset, is the same: it records the wish and releases the lock.
//  4. The leader never resets while another process holds the shared lock. After
//     the grace period it ends the attempt with [OutcomeHeld].
//
// # States
//
//	state     | intent | use    | the user of this process
//	waiting   | -      | -      | holds nothing; waits to be let in, or for the end of a reset
//	using     | -      | shared | may have the device open
//	releasing | -      | shared | was told that a reset is pending; releases
//	leading   | held   | shared | the same, in the process that leads
//	gathering | held   | -      | has released, or is left behind with a zombie (R14)
//	resetting | held   | excl.  | the same; the device is being reset
//	stuck     | held   | excl.  | was told reset_timeout; the reset has not returned
//	closed    | -      | -      | has ended
//
//	from      | to        | cause                                  | action
//	waiting   | using     | intent is idle, shared lock taken      | Open, or Ended for who was told
//	waiting   | gathering | a reset was cut short, and we can      | write wanted
//	          |           | reset: its lock is ours                |
//	using     | releasing | the intent says wanted or resetting    | Release
//	using     | releasing | Want, and we cannot reset              | write wanted, release the lock, Release
//	using     | leading   | Want, and the intent lock is ours; or  | write wanted, Release
//	          |           | one grace after a reset that was cut   |
//	          |           | short could not be completed           |
//	releasing | leading   | as waiting -> gathering                | write wanted
//	releasing | waiting   | Released                               | release the shared lock
//	releasing | using     | the reset ended without us             | Ended
//	leading   | gathering | Released, or the grace is over         | release the shared lock, try the other
//	gathering | resetting | the exclusive lock is ours             | write resetting, Reset
//	gathering | using     | the grace is over                      | write held_by_process, Ended
//	resetting | using     | ResetDone                              | write the outcome, Ended
//	resetting | waiting   | ResetDone: not permitted               | write wanted, release both locks
//	resetting | stuck     | the limit is over                      | write reset_timeout, Ended
//	stuck     | using     | ResetDone                              | write the outcome
//	any       | closed    | Close                                  | a leader that has not begun writes that
//
// A process whose reset touches nothing that others use (the software HCA, or a
// device with `reset: none`) takes the same way without the intent and without the
// exclusive lock ([Config.Exclusive]); it still releases the device for the resets
// of others. Without a directory there is nothing else ([Config.Shared]).
//
// # Timers
//
//	grace    60 s, from the intent until the reset goes on or fails (R14)
//	limit    30 s, from Reset until it counts as stuck
//	try      10 ms, between two tries for a lock that others are about to release
//	poll     1 s, between two looks at the intent
//	orphan   3 s, that a process that cannot reset leaves a reset without a leader to
//	         those that can: three of their polls
//	silence  grace, limit and 1 s, until a leader that says nothing is named
//
// There is no settle time: a process that holds the device holds its lock, so a new
// leader need not wait for anybody to come back.
//
// # What the record is worth
//
// Its content is untrusted: it is decoded within bounds, and names in it are for
// messages only. A record of another device counts as none; a reset that was cut
// short is completed as one (what was deleted is added again) only if name and means
// in the record are those of our own configuration. A process that can write the file can
// block or request a reset: sharing the directory grants that power.
//
// # Limits
//
// A leader that is stopped, not dead, blocks the others until it goes on or ends;
// they name it ([Silent]). A process that holds the device and is stopped fails the
// reset of the others. A process that does not take part is not seen by the locks.
// If no process can reset, a reset that had begun is ended for those that wait, and
// completed by the next process that can ([Record.Begun]).
//
// The kernel closes the descriptors of a process that dies one after the other, today
// those with the highest numbers first. The locks are opened before the
// device, so they are mostly released after it; where a device got a lower number, its
// lock is free some moments before the device is.
package reset
