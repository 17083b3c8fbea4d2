// Package reset coordinates the reset of an HCA that several clients use: the
// interfaces of one daemon, and those of several daemons on one host. It is
// pure: time is passed in, events go in, actions come out ([Server.Step],
// [Client.Step]); messages are plain data with a bounded codec for a byte stream
// ([Append], [Decode]). The shells carry the bytes and do the work.
//
// # The conversation
//
// There are two calls and two events (R11). A client requests a reset ([Request])
// and says that it is ready for one ([Ready]); it is told that one is pending
// ([Pending]) and that it ended ([Ended]). A client knows its own resources and
// releases them before it says ready; nobody else keeps book of them (R12). The
// device is reset when every client is ready, and each client, idle or not, is
// told of each phase exactly once (R13).
//
// A client registers with [Hello] before it opens the device. The answer is the
// [Roster] of all clients; where a reset is pending, Pending comes first, and the
// newcomer, which holds nothing, delays nobody.
//
// # The server
//
//	from      | to        | cause                                | action
//	idle      | pending   | Request, or Hello that wants one,    | Pending to every client
//	          |           | or Hello from a reset that an        |
//	          |           | earlier host left unfinished         |
//	pending   | pending   | Request (it is the same reset)       | none
//	pending   | resetting | all ready, and the settle time over  | Reset
//	pending   | resetting | grace over; only clients of this     | Reset without them, by name
//	          |           | process are not ready                |
//	pending   | idle      | grace over; another process holds    | Ended, held_by_process, with its name
//	          |           | the device                           |
//	pending   | idle      | the unfinished reset turns out to    | Ended to those who had not heard
//	          |           | have ended, and nobody was told anew |
//	resetting | idle      | ResetDone                            | Ended, done or reset_failed
//	resetting | idle      | reset limit over                     | Ended, reset_timeout
//
// A connection that breaks says nothing about the process behind it: until the
// client comes back, says [Leave], or its process is reported dead, it still
// holds what it held (R15). Only for a client of this process is the end of the
// connection the end of the client.
//
// # The client
//
//	from      | to        | cause             | action
//	starting  | running   | Roster            | Open
//	starting  | releasing | Pending           | Release
//	running   | releasing | Pending           | Release
//	releasing | released  | Released          | Ready to the server
//	releasing | running   | Ended (too slow)  | Restart
//	released  | running   | Ended             | Restart
//
// The link to the server (down, dialing, joining, up) is a state of its own; a
// client keeps its place in a reset while the link is down.
//
// A host that is stopped, not dead, keeps its connections and says nothing. The
// client watches over what the host owes it (the roster after Hello, Pending after
// Request, Ended after Pending), and once the time for that is over tells it, by
// [HostSilent]; then it waits on, for the device is not reset over the head of a
// process that may have it open (R14, R16). [HostAnswers] tells of the end.
//
// # Takeover
//
// Whoever binds the socket first hosts (R16). When the host dies its clients see
// their connections break and dial again; the first that finds nobody hosts in
// turn. Hello carries a client's state, the last reset that it saw end, and the
// roster it knew. So the new host knows which clients have yet to come back, and
// waits for them as for any other; it takes up a reset under way, under a number
// of its own; and it learns when that one had ended after all. The clients inside
// the dead host died with it, so they are not in the roster.
//
// # Timers
//
//	grace        60 s, from pending until the reset goes on or fails (R14)
//	reset limit  30 s, from Reset until it counts as stuck
//	settle       2 s from the start of a host: no reset before
//	forget       one grace: a client known from a roster that has not come back
//	dial again   20 ms doubling to 500 ms
//	silent host  grace for Pending or the first roster; grace, reset limit and 1 s
//	             for Ended
//
// # Limits
//
// A new host cannot know of a client that is in nobody's roster, which is one
// that registered within the last moments of the old host, or any at all where
// only strangers to the old host are left. The settle time lets those come back
// first; one that is stopped for longer than that at that very time is missed.
// A client known from a roster is taken for dead when it has not come back within
// a grace period: the new host does not watch its process, whose number may be of
// another PID namespace.
//
// A client that stops while its link is down cannot say so; the next host counts
// it as absent until its process ends or a grace period is over.
//
// A host that is stopped, not dead, keeps its clients waiting until it goes on or
// is ended; the time limit of their own rung is what ends that wait. A client
// whose grace period is shorter than the host's may call it silent too early.
package reset
