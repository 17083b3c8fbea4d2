// Package reset coordinates the reset of an HCA that several processes of one host use, by
// two kernel file locks and one small file (R11-R17). A [Machine] has no goroutine, clock
// or file: its caller passes in the time, the events and a [Kernel] that makes the system
// calls. Unlike the messages to the user, they are not actions, because the answer to each
// call decides about the next one: as data, each try for a lock would need an event and a
// handler of its own, and what is one function now would be two or three. No call blocks,
// and the exploration test runs the other processes between any two calls.
//
// # The files
//
// Each device has two files in a directory on tmpfs. Their name consists of the node GUID
// and the PCI address or, for a software RDMA device, its parent netdev ([Device.Key]). The
// kernel's index is not part of it, since it changes whenever a device is added again. So
// processes that use different HCAs do not interfere, even if they share a directory.
//
//	<key>.use     empty; flock only. Shared: this process may have the device open.
//	              Exclusive: this process resets it.
//	<key>.intent  flock exclusive: this process leads a reset. The content is one
//	              [Record]; only the holder of the lock writes it.
//
// The kernel elects the leader, and releases the locks of a process that dies, in any PID,
// mount or network namespace. All processes watch the intent file; since events may be
// lost, each also reads it once a second, and four times a second during a reset that it
// could lead itself.
//
// # Rules
//
//  1. A process tries for the exclusive lock on use only while it holds the lock on intent.
//     So the conversions between shared and exclusive, which flock makes in two steps, are
//     safe, and one descriptor for each file is enough.
//  2. A leader writes the intent before it tries for the exclusive lock. A process reads
//     the intent again after it took the shared lock. So no process misses an intent, and
//     the leader's try fails until that process has released the device.
//  3. A record that says wanted or resetting, while no process holds the intent lock, is a
//     reset that was cut short. Any process that can reset the device takes the lock and
//     leads that reset to its end. A hand-over by a process that lacks the privilege to
//     reset is the same: it records the wish and releases the lock.
//  4. The leader never resets while another process holds the shared lock, or, without taking
//     part in the locks, has the device open ([Kernel.Foreign]). After the grace period it ends
//     the attempt with [OutcomeHeld]. Then no process waits any longer for its own users either
//     ([Ended.Abandon], R14).
//
// # States
//
//	state     | intent | use    | the user of this process
//	releasing | -      | shared | releases the device for another process's reset; at the
//	          |        |        | start there is no lock, and nothing to release
//	waiting   | -      | -      | holds nothing, and waits for the end of the reset
//	using     | -      | shared | may have the device open
//	leading   | held   | shared | releases the device for our reset
//	gathering | held   | -      | has released it, or was abandoned (R14)
//	resetting | held   | excl.  | the same; the device is being reset. After the limit it
//	          |        |        | got reset_timeout, and the reset has not returned yet
//
//	from      | to        | cause                                 | effect
//	releasing | waiting   | Released                              | release the shared lock
//	releasing | using     | the intent is idle, the shared lock   | Ended, unless the user was
//	waiting   |           | is ours                               | never asked to release
//	releasing | leading   | a reset was cut short, we can reset,  | write wanted
//	waiting   | gathering | and the intent lock is ours           | write wanted
//	using     | releasing | the intent says wanted or resetting   | Release
//	using     | leading   | Want, and the intent lock is ours; or | write wanted, Release
//	          |           | the device was not opened for some    |
//	          |           | time after a reset that was cut short |
//	using     | using     | Opened, the record says Begun, and    | write that it has not begun
//	          |           | the intent lock is ours               |
//	leading   | gathering | Released, or the grace period is over | try for the exclusive lock
//	gathering | resetting | the exclusive lock is ours, and no    | write resetting, Reset
//	          |           | other process has the device open     |
//	gathering | using     | the grace period is over              | write held_by_process, Ended
//	using     | using     | Want; the intent lock is never ours   | Ended, reset_failed
//	gathering | using     | the exclusive lock is never ours      | write reset_failed, Ended
//	resetting | using     | Done                                  | write the outcome, Ended
//	resetting | waiting   | Done: not permitted                   | write wanted, release both locks
//	resetting | resetting | the limit is over                     | Ended
//
// A process whose reset affects no other process (the software HCA, or a device with
// `reset: none`) takes the same steps without the intent and the exclusive lock
// ([Config.Exclusive]). It still releases the device for resets by others.
//
// # A reset that was cut short
//
// If the leader dies while it resets the device, or cannot bring it back, the record says so
// ([Record.Begun]). Where other processes wait for the end of that reset, one of them completes
// it at once. Otherwise the processes try to open the device. If one of them succeeds, nothing is
// left of the reset, and the record is void: the device was brought back, or the leader died
// before it removed it. If none succeeds, one of them completes the reset after the grace
// period, and, if that fails, again after two of them, and then after four each time.
//
// # Trust in the record
//
// The content of a record is untrusted: it is decoded within bounds, and names in it are
// only for messages. A record of another device is ignored. A reset that was cut short is
// completed (what was deleted is added again) only if the device, its name and the means of
// reset in the record match our own configuration; otherwise the device is just reset. A
// process that can write the file can block or request a reset: sharing the directory grants
// that power.
//
// # Limits
//
// A leader that is stopped blocks the others until it resumes or exits; they report it
// ([Silent]). A process that is stopped while it holds the device makes the resets of others
// fail. A program that takes no part in the locks loses the device if it opens it after the
// last check. If no process has the privilege to reset, a reset that had begun ends for the
// processes that wait, and the next process that has it completes the reset ([Record.Begun]).
//
// The kernel closes the descriptors of a process that dies one after the other, today those
// with the highest numbers first. The locks are opened before the device, so they are
// usually released after it; if the device has a lower number, its lock is released a
// moment before the device is.
package reset
