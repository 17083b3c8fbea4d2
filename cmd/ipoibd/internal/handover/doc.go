// Package handover is the protocol by which a running daemon, the giver, hands its interfaces over to
// another process of the same user, the taker, over a UNIX stream socket. The giver, a [Host], first waits until
// everything is settled, parks it, and exports it into a capsule; if the taker fails, it resumes. The taker
// ([TakeOver]) builds from the capsule what the giver runs.
//
// Each message is its length, 4 bytes in network byte order, and a JSON object. The descriptors of an
// offer follow it as SCM_RIGHTS, 250 at most with each further byte.
//
//	message   | from  | means
//	ask       | taker | the version of the protocol
//	offer     | giver | it has stopped at a boundary; here are its state and its descriptors
//	taken     | taker | it has built all that can fail, and waits
//	yours     | giver | it has given up everything, and ends
//	withdrawn | giver | it keeps everything; the taker must not use what it received
//
// Until yours, everything belongs to the giver: if the connection breaks, the taker refuses or the
// limit passes, the giver continues where it stopped, since it has closed nothing. If the connection breaks
// while the taker waits for yours, the giver has died: a living giver withdraws first, and keeps the
// connection open until the taker could read that, however long the taker is stopped. Then
// only the taker has the descriptors, so it continues. So at any moment exactly one process owns the
// interfaces, whichever of the two is killed; machine.go has both sides as tables.
//
// If a taker is to end while it waits for yours, it stops receiving: the giver can send no more, and keeps
// everything, unless yours was on its way.
//
// The state is a capsule, whose format outlives versions (package capsule), so other versions can take over.
package handover
